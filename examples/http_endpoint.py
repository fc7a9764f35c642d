"""Rows to an HTTP endpoint in under 40 lines: sealed in the write-ahead log, then posted, each post with its own key.

Run it: python examples/http_endpoint.py
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import holdfast as hf
from holdfast.testing import audit


class HttpEndpoint(hf.WriteAheadSink):
    """Exactly-once into an endpoint that takes a post with a known `Idempotency-Key` for done; else at-least-once."""

    name = "http"

    def __init__(self, url, *, committer):
        super().__init__(committer=committer)
        self.url = url

    def send_values(self, values, checkpoint_id, timestamp):
        task = hf.current_task()
        for number, batch in enumerate(values):
            key = f"{task.lineage}/{task.sink}/{checkpoint_id}/{task.subtask}/{number}"
            headers = {"Content-Type": "application/json", "Idempotency-Key": urllib.parse.quote(key)}
            body = json.dumps(batch.to_pylist(), default=str).encode()
            request = urllib.request.Request(self.url, body, headers, method="POST")
            with urllib.request.urlopen(request, timeout=30):
                pass  # any answer but success raises: the checkpoint stays pending and is sent again later
        return True


class Server(ThreadingHTTPServer):
    """An endpoint that remembers keys, as payment services do."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.rows, self.keys, self.lock = [], set(), threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            if self.headers["Idempotency-Key"] not in self.server.keys:
                self.server.keys.add(self.headers["Idempotency-Key"])
                self.server.rows += rows
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    spark = hf.session("http-endpoint")
    with tempfile.TemporaryDirectory() as folder, Server() as server:
        inbox = Path(folder, "in")
        inbox.mkdir()
        for number in range(3):
            rows = [{"id": 100 * number + n, "name": f"row {n}"} for n in range(100)]
            (inbox / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
        lines = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", "1").json(str(inbox))
        sink = HttpEndpoint(server.url, committer=hf.FileCheckpointCommitter(f"{folder}/delivered"))
        writer = hf.write_stream(lines, sink, name="example", checkpoint_location=f"{folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        report = audit(range(300), [row["id"] for row in server.rows])
    spark.stop()
    print(f"rows posted: {report}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
