"""An HTTP endpoint for the demo: keeps the rows of each idempotency key once, and can be down."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_KEY = re.compile(r"[0-9a-f]{32}-\d+-\d+")


class Endpoint:
    """Serves on the loopback interface, in threads of this process, which is never killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._ambush: Callable[[], None] | None = None
        self.up = True
        #: rows kept
        self.rows = 0
        #: posts taken, repeats among them, posts refused while down, and repeats whose rows were not the same
        self.posts = self.repeated = self.refused = self.changed = 0
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def ambush(self, action: Callable[[], None] | None) -> None:
        """With the next post: keep its rows, run this, and hang up without an answer."""
        self._ambush = action

    def take(self, key: str, body: bytes) -> bool | None:
        """Whether a post is taken; None: hang up."""
        with self._lock:
            if not self.up or not _KEY.fullmatch(key):
                self.refused += 1
                # An endpoint that is down says so or says nothing; a sender must cope with both.
                return False if self.refused % 2 else None
            self._keep(key, body)
            action, self._ambush = self._ambush, None
            if action is None:
                return True
            action()
            return None

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _keep(self, key: str, body: bytes) -> None:
        self.posts += 1
        path = self._folder / f"{key}.jsonl"
        if path.exists():
            self.repeated += 1
            self.changed += path.read_bytes() != body
            return
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(body)
        temporary.rename(path)
        self.rows += body.count(b"\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A sender that was killed in the middle of a post is what the demo is about."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 10
    server: _Server

    def do_POST(self) -> None:
        """Take a whole post or nothing: a killed sender's half is no post."""
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            return
        taken = self.server.endpoint.take(self.headers.get("Idempotency-Key", ""), body)
        if taken is not None:
            self.send_response(200 if taken else 503)
            self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
