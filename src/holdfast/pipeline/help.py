"""What every option is for: one table, which the schema of job files, the reference and the pages of sinks are made from.

Names, types and defaults are the constructors' own; a test compares them with this. The texts are Markdown; the schema
shows them without links and marks. `make tables` writes them into the docs.
"""

from __future__ import annotations

import re

_NAME = "the sink's name, unique in the pipeline; keep it over restarts. Default: `{}`"
_ORDER = (
    "for `upsert`: of two rows of one key the one with the larger value of this column wins; without it, two in one "
    "checkpoint are an error"
)
_TARGETS = "with a [pattern](routes.md#tables-topics-and-folders-by-columns): how many names it may come to"
_PATTERN = "; or [a pattern over columns](routes.md#tables-topics-and-folders-by-columns), such as `{}`"
_KEY = "for `upsert`: the columns that identify a row"
_DELETES = {
    "delete_when": "for `upsert`: a condition in Spark SQL, such as `op = 'd'`; rows for which it is true [delete](changes.md#deletes) the row of their key",
    "keep_deletes": "with `order_by`: how long a delete keeps older rows that come late away",
}
_CHANGE = "what becomes of [columns that are new](schema-changes.md): `freeze` refuses them, `evolve` adds them, `discard-column` leaves them out and counts"
_CLUSTER = {
    "port": "of all hosts",
    "username": "to log in; with `password` or not at all",
    "password": "to log in; never in a log, a record or an error",
    "tls": "`True` for the system's authorities, or `{ca, certificate, key, check_hostname}`: paths of PEM files that "
    "driver and executors have",
    "local_dc": "the datacenter to talk to; `None`: that of the first contact point",
    "timeout": "seconds for a request, and for a connection",
}
_HOSTS = "a list of host names; one that answers is enough to find the others"
_HIDE = "a function that takes secrets of your own out of error texts; by default it changes nothing"
_LIMITS = {
    "max_pending": "how many checkpoints may wait in the log before the query fails; nothing is lost; `None`: no limit",
    "max_pending_bytes": "how many bytes may wait there; `None`: no limit",
}

HELP: dict[str, dict[str, str]] = {
    "write_stream": {
        "df": "a streaming DataFrame, of a classic SparkSession or of [Spark Connect](spark-doors.md#spark-connect)",
        "sinks": "a sink or an `hf.route` of one, or a list of them with different names",
        "name": "the pipeline's identity at every endpoint; keep it over restarts",
        "checkpoint_location": "a path or URL that driver and executors reach; where tasks write there (write-ahead log), "
        "a start on a cluster proves that they do",
        "delivery": "`exactly-once` or [`at-least-once`](guarantees.md#at-least-once-mode)",
        "take_over": "let this location own a name that a ledger knows from another one: "
        "[what it means](guarantees.md#what-take_over-means)",
        "retry": "an [`hf.Retry`](#retry): how long a start, a batch and a commit wait for an endpoint that is away; "
        "default `hf.Retry()`",
        "drain_timeout": "how long a bounded run (`availableNow`, `once`) and a stop give sinks that lag to catch up; what "
        "is left then is an `UndeliveredError`, and the next start delivers it",
        "history_retain": "of how many checkpoints, the newest, `hf.checkpoints` and `holdfast history` keep statistics: at "
        "least so many, since they go by files of up to 100 entries; nothing is decided by them",
        "dead_letters": "an [`hf.DeadLetters`](#deadletters): where rows go that a sink refuses or a route rejects; without "
        "it the query stops at them",
    },
    "route": {
        "sink": "any sink",
        "where": "a predicate in Spark SQL: the rows for which it is true",
        "select": "an expression in Spark SQL, or a list of them: the sink's columns",
        "reject": "a predicate in Spark SQL: of these rows, those for which it is true are bad: they go to the "
        "[dead letters](routes.md#dead-letters), and without those the query stops at them",
    },
    "DeadLetters": {
        "sink": 'where letters go: any sink, a `KafkaSink` with `mode="write-ahead"`',
        "max_ratio": "the batch fails when more of a checkpoint's rows are bad; one of fewer than 1,000 rows counts as one "
        "of 1,000; `None`: no such limit",
        "max_rows": "the batch fails when a checkpoint has more; `None`: no such limit",
    },
    "Retry": {
        "for_": "how long it is tried again",
        "first_wait": "the first wait between two tries",
        "longest_wait": "the longest: it doubles in between",
    },
    "session": {
        "app_name": "the name of the application",
        "kafka": "`True`: add Spark's Kafka connector; it is fetched once",
        "conf": "settings of Spark; they add to and override the defaults",
        "state": "`rocksdb`: keyed state in RocksDB, with incremental checkpoints",
    },
    "read_kafka": {
        "spark": "a classic SparkSession with Spark's Kafka connector",
        "bootstrap_servers": "`host:port`, with commas between several",
        "topics": "a list of topics; or give a `pattern`",
        "pattern": "a regular expression for topics, those made later included",
        "group_id": "the consumer group that shows how far the pipeline is",
        "start": "a [`StartFrom`](#startfrom); counts only while the query has no checkpoint",
        "commit_offsets": "`False`: do not commit offsets to the group; else they follow what every sink has committed, and "
        "never lead",
        "isolation": "`read_committed` or `read_uncommitted`",
        "options": "passed to Spark's source as they are (`maxOffsetsPerTrigger`, `kafka.*`); `kafka.max.poll.records` is "
        "10,000 unless you set it: with Kafka's 500 Spark asks the broker for the ends of a partition so often that a batch "
        "takes longer",
    },
    "from_debezium": {
        "df": "the source's rows",
        "schema": "the columns of the table: `id bigint, name string`, or a `StructType`",
        "value": "the column of the messages",
        "key": "the column of their keys: completes deletes that say no more than their key",
        "op": "what the column with the kind of a change is called: `c`, `u`, `r`, `d`",
        "position": "what the column with the order of changes is called",
        "order": "Spark SQL for `position`, over `source` (a map of texts), `ts_ms` and the columns of `df`",
        "keep": 'columns of `df` to keep, such as `["topic", "offset"]`',
        "bad": "`fail`: what is no change fails the query; `null`: it becomes a row without `op`",
    },
    "KafkaSink": {
        "bootstrap_servers": "`host:port`, with commas between several",
        "topic": "where rows go, or [a pattern over columns](routes.md#tables-topics-and-folders-by-columns), such as "
        "`orders.{country}`; it must be there when the query starts. Without it the DataFrame needs a column `topic`, "
        "and a topic that is not there is noticed with the first row that names it",
        "key": "Spark SQL for the message's key, from columns of any name",
        "value": "Spark SQL for the message's value, for example `to_json(struct(*))`",
        "delete_when": "a condition in Spark SQL, with `key` and `value`: rows for which it is true are [messages without a value](changes.md#kafka-a-message-without-a-value)",
        "progress_topic": "another topic that gets [one message a checkpoint](kafka.md#whole-checkpoints-for-readers), "
        "after all of its rows; with one `topic` and exactly-once delivery",
        "delivery": "`exactly-once`, `at-least-once` or `none`; `None`: the pipeline's",
        "mode": "`two-phase`, or `write-ahead`: rows wait in the log while brokers are away",
        "config": "librdkafka's settings (`transaction.timeout.ms`, `sasl.*`, `ssl.*`), for all clients of this sink",
        "max_targets": _TARGETS,
        "name": _NAME.format("kafka-<topic>"),
        **_LIMITS,
    },
    "PostgresSink": {
        "dsn": "`postgresql://user:password@host:port/database`, or libpq's `key=value` pairs; driver and executors connect "
        "with it; it is in no log, record, message or name",
        "table": "`table` or `schema.table`, spelled as the catalog spells it (upper and lower case differ); a name with a dot or a blank in double quotes"
        + _PATTERN.format("orders_{country}"),
        "mode": "`ledger` (another word for it: `append`) and `two-phase` append; `upsert` replaces rows by `key`",
        "stage": "for `ledger`: where rows wait for the commit. `log`: in the checkpoint location, so that the server [writes "
        "them once](postgres.md#stage-log); for simple types and constraints. `server`: in a staging table there. `auto`: `log` "
        "where the location is a file system and the table such that no row is refused which the server would take, else `server`",
        "key": f"{_KEY}; the table needs a unique index on them, and a row without a key is an error",
        "order_by": _ORDER,
        **_DELETES,
        "schema_change": _CHANGE,
        "create": "`True`: a table that is not there is made from the DataFrame's columns; `False`: it is an error that shows the statement",
        "schema": "where the ledger and the staging tables are; keep it over restarts, or a start takes the database for a restored one",
        "lock_timeout": "seconds to wait for a lock before the attempt fails; it is tried again",
        "max_targets": _TARGETS,
        "name": _NAME.format("postgres-<table>"),
    },
    "FileSink": {
        "path": "a folder, or the URL of one" + _PATTERN.format("/data/{country}"),
        "format": "`parquet`, `json` (lines) or `csv` (with a header line)",
        "bucket_by": "columns, and `TimeBucket`s (in a job file `{pattern, column, timezone}`): [buckets](files.md#buckets)",
        "partition_by": "Spark's word for `bucket_by`: give one of them",
        "rolling": "when files are completed: [`hf.Rolling`](reference.md#rolling); default `hf.Rolling()`",
        "compression": "Parquet: `snappy` (default), `zstd`, `gzip`, `lz4`, `none`; JSON and CSV: `none` (default), `gzip`",
        "schema_change": f"{_CHANGE}; CSV files take no new ones",
        "csv_readers": "who will read CSV files: `spark`, `duckdb`, `pandas`, `python` (the `csv` module); all by default. "
        "[What each would misread](files.md#csv) is refused",
        "max_targets": _TARGETS,
        "name": _NAME.format("files-<folder>"),
    },
    "Rolling": {
        "size": "at this size; `None`: no such limit",
        "age": "this long after its first row; `0s` completes the files of every checkpoint at once",
        "inactivity": "this long after its last row",
    },
    "TimeBucket": {
        "pattern": "folders `name=value` with `%Y %m %d %H %M %j %y %G %V %u`",
        "column": "an event-time column; `None`: the time of the checkpoint",
        "timezone": "of the folders' names",
    },
    "SqliteSink": {
        "path": "the file",
        "table": "the table; one that is not there is made from the DataFrame's columns"
        + _PATTERN.format("orders_{country}"),
        "mode": "`ledger`, or `append`, which is another word for it, appends; `upsert` replaces rows by `key`",
        "key": _KEY,
        "order_by": _ORDER,
        "max_targets": _TARGETS,
        **_DELETES,
        "schema_change": _CHANGE,
        "name": _NAME.format("sqlite-<table>"),
    },
    "CassandraSink": {
        "contact_points": _HOSTS,
        "keyspace": "the keyspace; upper and lower case count, as in quoted CQL",
        "table": "the table; its primary key is the rows' key" + _PATTERN.format("orders_{country}"),
        "committer": "where sent checkpoints are marked; `None`: a table `holdfast_committer` in the same keyspace",
        "order_by": "the column that says which of two rows of one key is the last; then stored values are read first, and "
        "one task sends a checkpoint, else one for each subtask",
        **_DELETES,
        "schema_change": _CHANGE,
        "nulls": "`write` deletes the column's value, `skip` leaves it",
        "consistency": "how many replicas must have a row: `LOCAL_QUORUM`, `QUORUM`, `EACH_QUORUM`, `ALL`, `LOCAL_ONE`, "
        "`ONE`, `TWO`, `THREE`",
        "concurrency": "requests under way at once, for each task",
        "max_mutation": "the largest row, in bytes or as `8MiB`; the smaller of this and the server's counts; `None`: what "
        "the server says, else 16 MiB",
        **_CLUSTER,
        "max_targets": _TARGETS,
        "name": _NAME.format("cassandra-<keyspace>-<table>"),
        **_LIMITS,
    },
    "WriteAheadSink": {
        "committer": "a [`CheckpointCommitter`](#checkpointcommitter): where sent checkpoints are marked",
        **_LIMITS,
    },
    "FileCheckpointCommitter": {"base_path": "a local folder that every executor reaches"},
    "SqlCheckpointCommitter": {
        "url": "`sqlite:////absolute/path.db` (or that file as a `pathlib.Path`), or `postgresql://user:password@host/database`; "
        "every executor reaches it",
    },
    "CassandraCheckpointCommitter": {
        "contact_points": _HOSTS,
        "keyspace": "where the table is",
        "table": "made if it is not there; several pipelines may share it",
        "replication": "how a keyspace that is not there is made; without it a missing keyspace is an error: how many copies "
        'there are is yours to say. On a laptop: `{"class": "SimpleStrategy", "replication_factor": 1}`',
        "consistency": "levels at which a read sees every write. The committer that a `CassandraSink` makes for itself follows "
        "the sink's level: the same one, `QUORUM` for `EACH_QUORUM`, `LOCAL_QUORUM` for `ONE` and the like. `LOCAL_QUORUM` "
        "marks are sure to be seen in the datacenter that wrote them: take `QUORUM` for a pipeline that moves between "
        "datacenters",
        **_CLUSTER,
    },
    "StartFrom": {
        "kind": "which of the class methods made it",
        "fallback": "where a partition without an offset starts; `error`: the start says which one",
        "timestamp_ms": "for `timestamp`",
        "offsets": "for `specific_offsets`: `{topic: {partition: the next offset to read}}`",
    },
    "read_whole_checkpoints": {
        "bootstrap_servers": "`host:port`, with commas between several",
        "progress_topic": "that of the sink",
        "pipeline": "whose checkpoints, when several share the topic",
        "sink": "the same, of several sinks",
        "after": "the last checkpoint that you have dealt with",
        "timeout": "how long to wait for the next one before it ends; `None`: for ever",
        "config": "librdkafka's settings for its consumers: `sasl.*`, `ssl.*`",
    },
    "checkpoints": {
        "checkpoint_location": "a path or URL",
        "last": "the newest ones only, and no more is read; `None`: all",
    },
    "savepoint": {
        "checkpoint_location": "of the pipeline: a path or URL",
        "target": "a path or URL; the savepoint is a new folder of it",
        "name": "of that folder; `None`: one is made from the pipeline's name and the checkpoint",
        "keep": "removes all but so many of this pipeline's savepoints in `target`; `None`: removes none",
        "timeout": "how long to wait for a running query",
        "stopped": "`True`: its driver is gone, although that cannot be seen from here",
    },
    "metrics": {
        "port": "0 takes a free one",
        "host": "`0.0.0.0` lets other machines ask",
    },
    "lineage": {
        "url": "where events are sent",
        "namespace": "of the jobs, which have the pipelines' names",
        "api_key": "to log in; never in a log, a record or an error",
        "timeout": "seconds for a request",
        "hide_also": _HIDE,
    },
    "traces": {
        "endpoint": "such as `http://host:4318`; `None`: OpenTelemetry's own environment variables say where",
        "hide_also": _HIDE,
    },
    "StdoutSink": {"name": "the sink's name, unique in the pipeline", "max_pending": _LIMITS["max_pending"]},
}


def plain_text(markdown: str) -> str:
    """Without links and marks."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", markdown).replace("`", "")


def about(target: str, option: str) -> str:
    """What an option is for, as a command's help says it."""
    said = plain_text(HELP[target][option]).partition(":")[0]
    return f"{said[:1].upper()}{said[1:]}."
