"""`python -m tests.integration.shared_job FOLDER SINK`: a stream on executors that have another disk at FOLDER/here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import holdfast as hf
from tests.spark_conf import FAST

#: Executors start their Python workers by this: in a namespace of its own, with another disk mounted there.
_PYTHON = """#!/bin/sh
exec unshare -rm sh -c 'mount -t tmpfs none "{here}" && exec "{python}" "$@"' sh "$@"
"""


def main() -> None:
    """Start the query; print how that went."""
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    here = folder / "here"
    here.mkdir()
    worker = folder / "python"
    worker.write_text(_PYTHON.format(here=here, python=sys.executable))
    worker.chmod(0o755)
    os.environ["PYSPARK_PYTHON"] = str(worker)
    conf = {**FAST, "spark.master": "local-cluster[1,1,512]", "spark.executor.memory": "512m"}
    spark = hf.session("shared", conf={**conf, "spark.pyspark.python": str(worker)})
    location, sink = folder / "checkpoint", hf.SqliteSink(here / "out.db", "rows")
    if kind == "files":
        sink = hf.FileSink(here / "out")
    elif kind == "log":
        location, sink = here / "checkpoint", hf.SqliteSink(folder / "out.db", "rows")
    rows = spark.readStream.format("rate").load()
    try:
        hf.write_stream(rows, sink, name="shared", checkpoint_location=location).start()
        print("STARTED")
    except hf.HoldfastError as error:
        print(f"REFUSED {type(error).__name__}: {error}")
    print("CLAIMED", (location / "holdfast" / "generations").exists())
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
