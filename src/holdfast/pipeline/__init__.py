"""Pipelines described by a file: read it, check it, build it, run it."""
