"""Benchmarks with a bar each; see README.md."""
