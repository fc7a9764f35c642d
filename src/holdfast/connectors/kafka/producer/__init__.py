"""Rows from Arrow buffers into librdkafka, without a Python object a row."""
