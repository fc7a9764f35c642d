"""Who may ask: the Host and Origin of every request are checked, and every answer tells the browser what it may do.

A page of another site can send requests to this machine, and a name of another site can be made to mean this machine.
The Host header gives the second away, the Origin header the first.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Lets requests through that name one of our hosts and come from our own pages."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = self._refused(scope["method"], Headers(scope=scope))
        if refused is None:
            await self._app(scope, receive, with_headers)
            return
        code, why = refused
        body = json.dumps({"error": "refused", "message": why}).encode()
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await with_headers({"type": "http.response.start", "status": code, "headers": kind})
        await with_headers({"type": "http.response.body", "body": body})

    def _refused(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or _name(f"//{host}") not in self._hosts:
            return 421, "this Host is not one of the dashboard's: start it with --allow-host to add a name"
        origin = headers.get("origin")
        if origin is None:
            return None if method in ("GET", "HEAD") else (403, "a request that changes something needs an Origin")
        # The scheme is the browser's business: a proxy in front of us may speak https.
        return None if origin.partition("://")[2].lower() == host.lower() else (403, "this Origin is another site")


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
