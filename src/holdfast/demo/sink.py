"""The demo's write-ahead sink: what a sink author writes for an HTTP endpoint."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pyarrow as pa

from holdfast.committers.base import CheckpointCommitter
from holdfast.core.model import CheckpointId
from holdfast.sinks.subtask import current_task
from holdfast.sinks.write_ahead import WriteAheadSink


class OrdersEndpoint(WriteAheadSink):
    """Exactly-once into an HTTP endpoint that recognises a repeated post by its `Idempotency-Key`.

    Needs an endpoint that keeps the rows of a key once. A post is one subtask's rows of one checkpoint, as JSON lines.
    """

    name = "endpoint"

    def __init__(self, port: int, committer: CheckpointCommitter) -> None:
        super().__init__(committer=committer)
        self.port = port

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: CheckpointId, timestamp: int) -> bool:
        """Post the rows; an error or any answer but 200 means: try again later."""
        task = current_task()
        body = "".join(json.dumps(row) + "\n" for batch in values for row in batch.to_pylist())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            key = f"{task.lineage}-{checkpoint_id}-{task.subtask}"
            connection.request("POST", "/orders", body.encode(), {"Idempotency-Key": key})
            return connection.getresponse().status == 200
        finally:
            connection.close()
