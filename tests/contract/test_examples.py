import subprocess
import sys

import pytest

from tests.contract.conftest import EXAMPLES


@pytest.mark.spark
@pytest.mark.parametrize("name", ["renamed_files", "http_endpoint", "upsert_endpoint"])
def test_the_example_runs_on_spark(name):
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("lost 0, doubled 0")
