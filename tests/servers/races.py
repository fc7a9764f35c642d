"""Many writers of one name in an object store: one wins, and what it wrote is there (R4)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from holdfast.checkpoint.storage import open_storage


def race_threads(location: str, names: Iterable[str]) -> None:
    """Sixteen threads for each of these names."""
    stores = [open_storage(location) for _ in range(16)]
    for name in names:
        with ThreadPoolExecutor(16) as pool:
            won = [pool.submit(stores[i].create, name, b"%d" % i) for i in range(16)]
        told = [answer.result() for answer in won]
        assert told.count(True) == 1
        assert stores[0].read(name) == b"%d" % told.index(True)


def race_processes(location: str) -> None:
    """Sixteen writers in four processes; spawned, as Spark's workers are: a fork would share the parent's sockets."""
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        won = pool.map(_create, [(location, i) for i in range(16)], chunksize=1)
    assert won.count(True) == 1
    assert open_storage(location).read("generations/0") == b"%d" % won.index(True)


def _create(arguments: tuple[str, int]) -> bool:
    location, number = arguments
    return open_storage(location).create("generations/0", b"%d" % number)
