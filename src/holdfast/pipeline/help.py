"""What every option is for, in a few words: for the schema of job files. A test compares it with the constructors."""

from __future__ import annotations

_NAME = "The sink's name, unique in the pipeline; keep it over restarts."
_ORDER = "Of two rows of one key the one with the larger value of this column wins."
_DELETES = {
    "delete_when": "Spark SQL: rows for which it is true delete the row of their key: op = 'd'",
    "keep_deletes": "How long a delete keeps older rows that come late away, with order_by.",
}
_CHANGE = "For columns that are new: freeze (refused), evolve (added), discard-column (left out, counted)."
_PENDING = "Undelivered {} at which the query fails; nothing is lost."
_LIMITS = {"max_pending": _PENDING.format("checkpoints"), "max_pending_bytes": _PENDING.format("bytes")}

HELP: dict[str, dict[str, str]] = {
    "write_stream": {
        "name": "The pipeline's identity at every endpoint; keep it over restarts.",
        "checkpoint_location": "A path or URL that driver and executors reach.",
        "delivery": "exactly-once, or at-least-once.",
        "retry": "How long a start, a batch and a commit wait for an endpoint that is away.",
        "drain_timeout": "How long a bounded run or a stop waits for sinks that lag.",
        "history_retain": "How many checkpoints the history keeps.",
    },
    "read_kafka": {
        "bootstrap_servers": "host:port, with commas between several.",
        "topics": "Topics to read; or give a pattern.",
        "pattern": "A regular expression for topics, those made later included.",
        "group_id": "The consumer group that shows how far the pipeline is.",
        "commit_offsets": "false: commit no offsets to the group.",
        "isolation": "read_committed or read_uncommitted.",
        "options": "For Spark's source as they are: maxOffsetsPerTrigger, kafka.*",
    },
    "from_debezium": {
        "schema": "The columns of the table, as in SQL: id long, name string.",
        "value": "The column of the messages.",
        "key": "The column of their keys: completes deletes that say no more than their key.",
        "op": "What the column with the kind of change is called: c, u, r, d.",
        "position": "What the column with the order of changes is called.",
        "order": "Spark SQL for it, over source (a map), ts_ms and the source's columns.",
        "keep": "Columns of the source to keep.",
        "bad": "fail; or null: what is no change becomes a row without op.",
    },
    "KafkaSink": {
        "bootstrap_servers": "host:port, with commas between several.",
        "topic": "Where rows go; without it, each row says so in its column topic.",
        "delivery": "none, at-least-once or exactly-once; default: the pipeline's.",
        "mode": "two-phase, or write-ahead: rows wait in the log while brokers are away.",
        "config": "For the producer: transaction.timeout.ms, sasl.*, ssl.* and others.",
        "key": "Spark SQL for the message's key.",
        "value": "Spark SQL for the message's value: to_json(struct(*))",
        "delete_when": "Spark SQL: rows for which it is true are messages without a value: op = 'd'",
        "name": _NAME,
        **_LIMITS,
    },
    "PostgresSink": {
        "dsn": "postgresql://user:password@host:port/database",
        "table": "table or schema.table.",
        "mode": "ledger (or append), two-phase or upsert.",
        "key": "For upsert: the columns that identify a row.",
        "order_by": _ORDER,
        **_DELETES,
        "schema_change": _CHANGE,
        "create": "true: make a table that is not there.",
        "schema": "Where the ledger and the staging table are.",
        "lock_timeout": "Seconds to wait for a lock.",
        "name": _NAME,
    },
    "FileSink": {
        "path": "A folder, or the URL of one.",
        "format": "parquet, json or csv.",
        "bucket_by": "Columns, or {pattern, column, timezone} for folders by time.",
        "partition_by": "Spark's word for bucket_by.",
        "rolling": "When a file is completed.",
        "csv_readers": "Who will read CSV files: spark, duckdb, pandas, python; all by default.",
        "schema_change": _CHANGE,
        "compression": "As the format has it: zstd, snappy, gzip ...",
        "name": _NAME,
    },
    "Rolling": {
        "size": "At this size.",
        "age": "This long after its first row.",
        "inactivity": "This long after its last row.",
    },
    "TimeBucket": {
        "pattern": "Folders name=value with %Y %m %d %H %M %j %y %G %V %u.",
        "column": "An event-time column; without it the time of the checkpoint.",
        "timezone": "Of the folders' names.",
    },
    "SqliteSink": {
        "path": "The file.",
        "table": "The table; made if it is not there.",
        "mode": "ledger (or append), or upsert.",
        "key": "For upsert: the columns that identify a row.",
        "order_by": _ORDER,
        **_DELETES,
        "schema_change": _CHANGE,
        "name": _NAME,
    },
    "CassandraSink": {
        "contact_points": "Hosts to connect to.",
        "keyspace": "The keyspace.",
        "table": "The table; its primary key is the rows' key.",
        "order_by": _ORDER,
        **_DELETES,
        "schema_change": _CHANGE,
        "nulls": "write, or skip: leave what is there.",
        "consistency": "Of writes: LOCAL_QUORUM, QUORUM, ALL ...",
        "concurrency": "Requests under way in a task.",
        "max_mutation": "Cassandra's limit, where it cannot be read from the server.",
        "port": "Of the native protocol.",
        "username": "To log in.",
        "password": "To log in: ${CASSANDRA_PASSWORD}",
        "tls": "true, or {ca_certs, certfile, keyfile, check_hostname}.",
        "local_dc": "The data centre to send to.",
        "timeout": "Seconds for a request.",
        "name": _NAME,
        **_LIMITS,
    },
    "StdoutSink": {"name": _NAME, "max_pending": _LIMITS["max_pending"]},
    "Retry": {
        "for_": "How long it is tried again.",
        "first_wait": "The first wait between two tries.",
        "longest_wait": "The longest: it doubles in between.",
    },
}
