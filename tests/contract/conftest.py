import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    """An example as a module, importable by name, so that its classes pickle by reference."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def renamed_files():
    return load("renamed_files")


@pytest.fixture
def http_endpoint():
    return load("http_endpoint")


@pytest.fixture
def upsert_endpoint():
    return load("upsert_endpoint")
