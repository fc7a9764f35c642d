"""A TCP proxy before a broker that answers the first rows of each partition late, and with "not the leader"."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass

from tests.servers.kafka import free_port

PRODUCE, NOT_LEADER = 0, 6


@dataclass
class _Held:
    """A request that has not been answered yet."""

    version: int
    correlation: int
    topic: bytes
    partition: int


class NotLeaderProxy:
    """What a broker does that is not the leader yet when the first rows come, but is when the next ones do.

    The first request with rows of each partition waits until the next one is there, `patience` seconds at most. Then
    it is refused, and the next one goes to the broker.
    """

    def __init__(self, target: int, *, patience: float = 0.5) -> None:
        self.port = free_port()
        self.refused: list[int] = []
        self._target, self._patience = target, patience
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Take no more connections; the others end with their clients."""
        _end(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # stopped
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except ConnectionRefusedError:  # the broker is not up
                    _end(client)
                    continue
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one of the two is gone
            while (frame := _frame(server)) is not None:
                self._send(client, frame)
        _end(client, server)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        held: dict[int, _Held] = {}
        with contextlib.suppress(OSError):
            while (frame := _frame(client)) is not None:
                api, version, correlation = struct.unpack_from(">hhi", frame)
                if api == PRODUCE:
                    topic, partition = _target(frame)
                    if first := held.pop(partition, None):
                        self._refuse(client, first)
                    elif partition not in self.refused:
                        held[partition] = _Held(version, correlation, topic, partition)
                        threading.Thread(target=self._late, args=(client, held, partition), daemon=True).start()
                        continue
                self._send(server, frame)
        _end(client, server)

    def _late(self, client: socket.socket, held: dict[int, _Held], partition: int) -> None:
        time.sleep(self._patience)
        if request := held.pop(partition, None):
            with contextlib.suppress(OSError):
                self._refuse(client, request)

    def _refuse(self, client: socket.socket, request: _Held) -> None:
        self.refused.append(request.partition)
        name = bytes([len(request.topic) + 1]) + request.topic
        # index, error, offset, two times; no errors of single records, no message, no tags
        result = struct.pack(">ihqqq", request.partition, NOT_LEADER, -1, -1, -1) + b"\x01\x00\x00"
        answer = struct.pack(">i", request.correlation) + b"\x00\x02" + name + b"\x02" + result + b"\x00"
        self._send(client, answer + struct.pack(">i", 0) + b"\x00")

    def _send(self, to: socket.socket, frame: bytes) -> None:
        with self._lock:
            to.sendall(struct.pack(">i", len(frame)) + frame)


def _end(*sockets: socket.socket) -> None:
    """Close them, and wake whoever waits for one."""
    for each in sockets:
        with contextlib.suppress(OSError):  # was closed by the other side
            each.shutdown(socket.SHUT_RDWR)
        each.close()


def _frame(connection: socket.socket) -> bytes | None:
    """The next request or answer, without its length; None at the end."""
    size = _exactly(connection, 4)
    return None if size is None else _exactly(connection, struct.unpack(">i", size)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return parts


def _target(frame: bytes) -> tuple[bytes, int]:
    """(topic, partition) of a request with rows; librdkafka sends one partition in each. Versions 9 to 12."""
    version, client = struct.unpack_from(">h", frame, 2)[0], struct.unpack_from(">h", frame, 8)[0]
    assert 9 <= version <= 12, f"the proxy does not know version {version} of Produce"
    at = 10 + max(client, 0) + 1  # and no tags
    transactional, at = _length(frame, at)
    at += max(transactional - 1, 0) + 2 + 4  # acks, timeout
    topics, at = _length(frame, at)
    name, at = _length(frame, at)
    topic, at = frame[at : at + name - 1], at + name - 1
    partitions, at = _length(frame, at)
    assert topics == partitions == 2, "one topic and one partition"
    return topic, struct.unpack_from(">i", frame, at)[0]


def _length(frame: bytes, at: int) -> tuple[int, int]:
    """(an unsigned number of variable length, where it ends)."""
    number = shift = 0
    while True:
        byte = frame[at]
        at, number, shift = at + 1, number | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return number, at
