"""Receivers of OpenLineage events and OpenTelemetry traces, in this process: they keep what they are sent."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """An HTTP server on loopback that keeps every request, and can be told to refuse them."""

    def __init__(self) -> None:
        kept: list[tuple[str, dict[str, str], bytes]] = []
        self._kept, self.refuse = kept, False
        outer = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if not outer.refuse:
                    kept.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(400 if outer.refuse else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def text(self) -> str:
        """All that was sent, headers too."""
        return "\n".join(f"{path} {headers} {body!r}" for path, headers, body in self._kept)

    def headers(self) -> list[dict[str, str]]:
        return [headers for _, headers, _ in self._kept]

    def events(self) -> list[dict[str, Any]]:
        """OpenLineage's."""
        return [json.loads(body) for path, _, body in self._kept if path == "/api/v1/lineage"]

    def spans(self) -> list[Any]:
        """OpenTelemetry's, with their resource's attributes."""
        found = []
        for path, _, body in self._kept:
            if path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        found += list(scope.spans)
        return found


def attributes(span: Any) -> dict[str, Any]:
    """What a span says of itself."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
