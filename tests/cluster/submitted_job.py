"""A job as users submit it: `spark-submit ... submitted_job.py FOLDER SESSION STEPS...`, with a sink of its own module.

Each step says what it tries: `run`, `ship` the sink's module, or `extra`: a sink whose packages may be missing.
"""

import sys

import submitted_sink
from pyspark.sql import SparkSession

import holdfast as hf

folder, kind, steps = sys.argv[1], sys.argv[2], sys.argv[3:]
spark = hf.session("submitted") if kind == "hf" else SparkSession.builder.appName("submitted").getOrCreate()
rows = spark.readStream.schema("id long").json(f"{folder}/in").repartition(2)
lines = submitted_sink.Lines(f"{folder}/out", committer=hf.FileCheckpointCommitter(f"{folder}/marks"))
for step in steps:
    if step == "ship":
        spark.sparkContext.addPyFile(submitted_sink.__file__)
        continue
    more = [hf.PostgresSink("postgresql://127.0.0.1:1/none", "rows")] if step == "extra" else []
    writer = hf.write_stream(rows, [lines, *more], name="submitted", checkpoint_location=f"{folder}/checkpoint")
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
        print("ENDED", spark.sparkContext.master)
    except hf.HoldfastError as error:
        print(f"REFUSED {type(error).__name__}: {error}")
spark.stop()
