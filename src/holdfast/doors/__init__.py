"""Spark's own doors: `format("holdfast")`, so also Spark Connect and declarative pipelines.

Spark calls a Python data source from short-lived worker processes, and tells it neither when a query starts nor when it
ends. So what `write_stream` keeps in the driver (generation, delivery loops, timer) is kept here by one process of ours
beside the driver's JVM, for each query: `beside.py`. The workers talk to it over a socket.
"""
