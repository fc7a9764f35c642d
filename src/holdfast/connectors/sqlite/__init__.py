"""Rows into a table of an SQLite file."""

from holdfast.connectors.sqlite.sink import SqliteSink as SqliteSink
