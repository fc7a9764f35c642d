"""For all tests: Spark starts from kept classes, where `make test` or `python -m tests.class_archive` kept them."""

from tests import class_archive

class_archive.use()
