"""`python -m tests.prepare`: fetch and make, once for a machine, what tests that run side by side share."""

from holdfast.errors import HoldfastError
from holdfast.spark import class_archive
from holdfast.spark.jars import fetch_jars, kafka_jars
from tests.servers.cassandra import CASSANDRA
from tests.servers.chromium import binary as chromium
from tests.servers.kafka import KAFKA
from tests.servers.pgbouncer import binary as pgbouncer
from tests.servers.prometheus import binary as prometheus
from tests.servers.s3a import S3A


def main() -> None:
    """Servers and Spark's connector as jars, programs of Debian's, and Spark's classes as Java likes them best."""
    kafka_jars()
    for jars in (KAFKA, CASSANDRA, S3A):
        fetch_jars(jars)
    pgbouncer()
    chromium()
    prometheus()
    try:
        class_archive.make()
    except HoldfastError as error:
        print(f"every Spark of the tests starts a few seconds later: {error}")


if __name__ == "__main__":
    main()
