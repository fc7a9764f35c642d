"""Stands before a store and behaves as S3 does on a bad day: `python -m tests.servers.s3_proxy PORT TARGET`.

Every answer takes a while. Of the requests, some are answered with 503 and not done, and some are done and answered
with 503: whoever created a name by such a request is told, when it asks again, that the name exists. `GET /-/bad-days`
tells how many of each there were, so that nobody who was spared takes that for a proof.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: seconds that an answer takes
LATENCY = 0.005
#: one in so many requests is not done; of those that write, one in so many is done and not told
REFUSED, LOST = 41, 31
_WRITES = ("PUT", "POST", "DELETE")
#: what the proxy answers itself
COUNTS = "/-/bad-days"
_SLOW = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
#: in the URL of a piece of an upload to Google's emulator, which does not know afterwards how far it has come
_SPARED = "upload_id="
#: Hadoop's client of Azure, whose rename over the blob endpoint is a copy and a removal: it fails when one of the two
#: is done and not told, and the query with it. Its requests are refused as all are.
_FRAGILE = "Azure Blob FS"
#: of the connection, not of the message
_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


class Proxy(ThreadingHTTPServer):
    """One thread a connection."""

    daemon_threads = True

    def __init__(self, port: int, target: str) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.target, self._lock = target, threading.Lock()
        self._requests, self._writes = itertools.count(1), itertools.count(1)
        self._counts = {"refused": 0, "lost": 0}

    def refuses(self) -> bool:
        """Whether a request is not done."""
        return self._turn(self._requests, REFUSED, "refused")

    def loses(self) -> bool:
        """Whether the answer to a write is not told."""
        return self._turn(self._writes, LOST, "lost")

    def _turn(self, numbers: Iterator[int], one_in: int, name: str) -> bool:
        with self._lock:
            struck = next(numbers) % one_in == 0
            self._counts[name] += struck
            return struck

    def counts(self) -> bytes:
        """How many of each, as JSON."""
        with self._lock:
            return json.dumps(self._counts).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, BrokenPipeError):  # a client that was killed
            self.close_connection = True

    def _relay(self) -> None:
        body = self._body()
        if self.path == COUNTS:
            self._answer(200, [("Content-Type", "application/json")], self.server.counts())
            return
        time.sleep(LATENCY)
        spared = _SPARED in self.path
        if not spared and self.server.refuses():
            self._answer(503, [("Content-Type", "application/xml")], _SLOW)
            return
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        try:
            # As it came, with its Host: the signature covers that.
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
            if self.command == "HEAD" and answer.getheader("Content-Length"):
                headers.append(("Content-Length", answer.getheader("Content-Length") or "0"))
        finally:
            connection.close()
        may_be_lost = self.command in _WRITES and not spared and _FRAGILE not in self.headers.get("User-Agent", "")
        if may_be_lost and self.server.loses():
            self._answer(503, [("Content-Type", "application/xml")], _SLOW)
        else:
            self._answer(answer.status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _relay

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():  # trailers
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD" and status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def main() -> None:
    """Serve until killed."""
    Proxy(int(sys.argv[1]), sys.argv[2]).serve_forever()


if __name__ == "__main__":
    main()
