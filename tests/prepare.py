"""`python -m tests.prepare`: fetch and make, once for a machine, what tests that run side by side share."""

from holdfast.spark.jars import fetch_jars, kafka_jars
from tests import class_archive
from tests.servers.cassandra import CASSANDRA
from tests.servers.chromium import binary as chromium
from tests.servers.kafka import KAFKA
from tests.servers.pgbouncer import binary as pgbouncer
from tests.servers.s3a import S3A


def main() -> None:
    """Servers and Spark's connector as jars, pgbouncer, Chromium, and Spark's classes as Java likes them best."""
    kafka_jars()
    for jars in (KAFKA, CASSANDRA, S3A):
        fetch_jars(jars)
    pgbouncer()
    chromium()
    if class_archive.make() is None:
        print("this Java keeps no archive of classes: every Spark of the tests starts a few seconds later")


if __name__ == "__main__":
    main()
