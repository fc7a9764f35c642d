"""A web page over checkpoint locations: it reads their files, so queries may run, be stopped or have crashed."""

from importlib.util import find_spec

from holdfast.errors import ConfigError

#: what `holdfast[dashboard]` installs
_NEEDED = ("starlette", "uvicorn", "jinja2")


def require_packages() -> None:
    """ConfigError when what the dashboard is made of is not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the dashboard needs {', '.join(missing)}: pip install 'holdfast[dashboard]'")
