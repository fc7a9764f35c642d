"""How Spark writes its own checkpoint files on a local disk.

Spark's usual way there starts a process for each chmod and each symbolic link it looks for: 35 ms for the offsets and
40 ms for the commit of every batch, most of the time of a small one. Its other way writes the same files, with the same
checksums, beside and then by rename, in a quarter of the time.

Neither way keeps two drivers apart on a local disk: both look whether the file is there, then rename, which replaces
what somebody has put there in between. With holdfast that is not what keeps them apart: a driver claims a generation
by a create that only one can win, and without it decides and commits nothing. So nothing is lost by the faster one.
On stores that several machines share (HDFS, object stores) Spark's choice stays, as does a choice of the user.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from holdfast.spark import private

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
#: Set by hf.session: other sessions are left as they are.
OURS = "spark.holdfast.session"
_one_start = threading.RLock()


@contextmanager
def quick_files(spark: SparkSession, location: str) -> Iterator[None]:
    """While a query is started, which keeps a copy of the settings: the quick way where it is right."""
    with _one_start:
        chosen = _class(spark, location)
        if chosen is None:
            yield
            return
        spark.conf.set(SETTING, chosen)
        try:
            yield
        finally:
            spark.conf.unset(SETTING)


def _class(spark: SparkSession, location: str) -> str | None:
    context = spark.sparkContext
    ours = context.getConf().get(OURS, "false") == "true"
    if not ours or not location.startswith("file:") or spark.conf.get(SETTING, None) is not None:
        return None
    return private.file_manager(context)
