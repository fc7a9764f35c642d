"""Serving the pages on this machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from holdfast.dashboard.guard import LOOPBACK
from holdfast.dashboard.web import Site
from holdfast.errors import ConfigError

LOOPBACK_ADDRESS = "127.0.0.1"
#: seconds in which it starts and ends
STARTS = 60.0
_EVERYWHERE = ("0.0.0.0", "::")


def names_of(host: str, allowed: Sequence[str]) -> list[str]:
    """The names under which the dashboard may be asked for."""
    if host in _EVERYWHERE and not allowed:
        raise ConfigError(
            f"--host {host} is every address of this machine: say with --allow-host under which names it is asked for"
        )
    return [*LOOPBACK, *allowed, *([] if host in _EVERYWHERE else [host])]


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address; ConfigError when there is none to be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"--host {host}: {error}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise ConfigError(f"--host {host} --port {port}: {error}; --port 0 takes a free one") from error
    return found


def address_of(bound: socket.socket) -> str:
    """What to type into a browser."""
    host, port = bound.getsockname()[:2]
    if host in _EVERYWHERE:
        host = "localhost"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class Server(uvicorn.Server):
    """Ends the streams of open pages first: they never end by themselves."""

    def __init__(self, site: Site, names: Sequence[str]) -> None:
        super().__init__(
            uvicorn.Config(
                site.app(names),
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
                lifespan="off",
            )
        )
        self._feed = site.feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        self._feed.close()
        await super().shutdown(sockets)


@contextmanager
def beside(site: Site, port: int = 0) -> Iterator[str]:
    """Serve on this machine beside whatever the block does; its address."""
    bound = listen(LOOPBACK_ADDRESS, port)
    server = Server(site, LOOPBACK)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="holdfast-dashboard", daemon=True)
    thread.start()
    deadline = time.monotonic() + STARTS
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        if not server.started:
            raise ConfigError(f"the dashboard did not start within {STARTS:.0f} s")
        yield address_of(bound)
    finally:
        server.should_exit = True
        thread.join(STARTS)
        bound.close()


def serve(site: Site, bound: socket.socket, names: Sequence[str], ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM."""
    ready()
    Server(site, names).run(sockets=[bound])
