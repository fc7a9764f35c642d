"""What runs in a task to see which packages executors have. It is sent there as it is, since holdfast may be missing.

Nothing here may need more than Python itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def look(modules: Sequence[str], objects: bytes, number: int) -> dict[str, Any]:
    """Where task `number` runs, which modules cannot be found there, and why the pickled objects cannot be had."""
    import importlib.util
    import pickle
    import platform
    import socket
    import sys

    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    failure, version = None, None
    if not missing:
        try:
            pickle.loads(objects)  # noqa: S301  the driver's own bytes, as every task gets them
        except ModuleNotFoundError as error:
            missing.append(error.name or str(error))
        except Exception as error:  # noqa: BLE001  told on the driver
            failure = f"{type(error).__name__}: {error}"
        version = getattr(sys.modules.get("holdfast"), "__version__", None)
    return {
        "host": socket.gethostname(),
        "python": f"{sys.executable} ({platform.python_version()})",
        "missing": missing,
        "failure": failure,
        "version": version,
    }
