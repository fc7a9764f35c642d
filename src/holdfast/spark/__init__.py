"""How a stream runs on Spark; nothing below this package imports pyspark."""
