"""Cassandra: the sink. Its committer is holdfast.committers.cassandra."""
