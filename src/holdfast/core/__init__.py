"""Decisions only: no I/O, no clock, no Spark, standard library only."""
