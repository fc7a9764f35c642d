"""Spark's own process that forks the Python workers, which imports what tasks need before it forks.

Else every worker imports the same again: half a second of CPU each, in the time of the first rows. A process with
threads must not fork, and some imports start one. So it imports only where threads can be counted, on Linux: with more
than one after the imports, the daemon starts over as Spark's own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

#: What the tasks of every pipeline import; pandas since pyarrow does when it makes its first value from Python.
ALWAYS = ("pyspark.worker", "numpy", "pandas", "pyarrow", "holdfast.spark.tasks")
#: More, with commas between; hf.session sets it.
VARIABLE = "HOLDFAST_PRELOAD"
#: One of Arrow's three kinds of memory starts a thread when it is loaded, used or not. It is not used unless asked for.
_ALLOCATOR, _NO_THREAD = "JE_ARROW_MALLOC_CONF", "background_thread:false"
_THREADS = Path("/proc/self/task")


def preload() -> bool:
    """Import what tasks need; False if this process may not fork any more."""
    given = os.environ.get(_ALLOCATOR)
    if given is None:
        os.environ[_ALLOCATOR] = _NO_THREAD
    try:
        for name in ALWAYS:
            importlib.import_module(name)
        for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
            # A sink whose packages are missing says so itself, where somebody reads it.
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    finally:
        if given is None:
            del os.environ[_ALLOCATOR]
    # Workers collect garbage after every task; what was imported is none, and looking at it would copy its memory.
    gc.collect()
    gc.freeze()
    return len(list(_THREADS.iterdir())) == 1


def main() -> None:
    """As `pyspark.daemon`."""
    if _THREADS.is_dir() and not preload():
        _start_over("an import has started a thread")
    try:
        from pyspark.daemon import manager
    except ImportError:  # it is not public: `holdfast.spark.private` lists it
        _start_over("this Spark has no pyspark.daemon.manager")
    manager()


def _start_over(why: str) -> NoReturn:
    logging.getLogger("holdfast").warning("%s: each worker imports for itself", why)
    os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])


if __name__ == "__main__":
    main()
