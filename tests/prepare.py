"""`python -m tests.prepare`: fetch and make, once for a machine, what tests that run side by side share."""

from holdfast.spark.jars import SPARK_KAFKA, resolve
from tests import class_archive
from tests.servers.cassandra import CASSANDRA
from tests.servers.kafka import KAFKA


def main() -> None:
    """Servers and Spark's connector as jars, and Spark's classes as Java likes them best."""
    for jars in (SPARK_KAFKA, KAFKA, CASSANDRA):
        resolve(jars)
    if class_archive.make() is None:
        print("this Java keeps no archive of classes: every Spark of the tests starts a few seconds later")


if __name__ == "__main__":
    main()
