"""Where Spark finds `format("holdfast")`: it looks into every installed module whose name begins with `pyspark_`."""

from pyspark.sql import datasource

# Spark 4.0 has no Arrow writer for streams; there the format is simply not known.
if hasattr(datasource, "DataSourceStreamArrowWriter"):
    from holdfast.doors.source import DefaultSource as DefaultSource
