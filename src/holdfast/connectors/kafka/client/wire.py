"""A connection that speaks Kafka's protocol through kafka-python's public classes, for what librdkafka cannot do.

Brokers restart, move and vanish. A conversation that meets one that does not answer is begun anew, with new sockets and
a new list of brokers, for a bounded time; what is left then is a SinkError, which the caller may try again later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from holdfast.connectors.kafka.client.denied import denied
from holdfast.connectors.kafka.client.login import connect
from holdfast.connectors.kafka.client.security import python_settings, without_secrets
from holdfast.errors import ConfigError, MissingExtraError, SinkError

Answer = TypeVar("Answer")
#: Seconds for one answer, and for a conversation with all its repetitions: brokers take 9 to notice that one of them is
#: dead (broker.session.timeout.ms), and then its partitions move.
REQUEST, PATIENCE = 10.0, 20.0
#: Bytes of one answer, as Java's client has it: kafka-python's limit is 1 MB, which the marks of some thousand
#: transactions, or a cluster with many of them, exceed.
LARGEST = 100 * 1024**2
#: the coordinator is loading, moving, or not elected yet: ask again
MOVING = (14, 15, 16)
GROUP, TRANSACTION = 0, 1
_KINDS = {GROUP: "group", TRANSACTION: "transactional id"}
#: coordinators that a connection remembers at most
_KNOWN = 10_000


class NotYetError(SinkError):
    """A coordinator is not ready; the same request may succeed in a moment."""


class Connection:
    """To all brokers of a cluster; threads may share it, their conversations go one after the other."""

    def __init__(self, config: Mapping[str, Any], *, rights: str = "Read", owner: str = "") -> None:
        """`rights` are those a refusal to read a group's offsets asks for; `owner` is named by errors: `sink 'x'`."""
        self._rights, self._owner, self._config = rights, owner, config
        self._lock = threading.RLock()
        self._manager: Any = None
        self._net: Any = None
        #: addresses of brokers seen so far: those the user named may be the ones that are away
        self._seen: tuple[str, ...] = ()
        #: who coordinates what; forgotten as soon as somebody says that it is not so
        self._known: dict[tuple[int, str], int] = {}
        self.run(_nothing)

    def close(self) -> None:
        """Disconnect; the next conversation connects again."""
        with self._lock:
            manager, net = self._manager, self._net
            self._manager = self._net = None
            self._known.clear()
            if manager is not None:
                manager.close()
                net.close()

    def __del__(self) -> None:
        """A query that died without closing its sinks leaves no sockets behind."""
        if hasattr(self, "_net"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, function: Callable[[], Awaitable[Answer]], *, timeout: float | None = None) -> Answer:
        """Run a conversation to its end, again and again while brokers are not ready: so it must be repeatable."""
        timeout = PATIENCE if timeout is None else timeout
        try:
            from kafka.errors import KafkaError
        except ImportError as error:
            raise MissingExtraError("Kafka needs more packages: pip install 'holdfast[kafka]'") from error
        deadline, pause = time.monotonic() + timeout, 0.05
        while True:
            problem: Exception
            try:
                with self._lock:
                    answer: Answer = self._connected(deadline).run(function)
            except NotYetError as error:
                self._known.clear()
                problem = error
            except (KafkaError, OSError) as error:
                # Its sockets, its brokers' addresses and its memory of which are down may all be stale.
                self.close()
                self._check_permanent(error)
                problem = error
            else:
                return answer
            if time.monotonic() > deadline:
                raise self.silent(problem, timeout) from problem
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _connected(self, deadline: float) -> Any:
        if self._manager is None:
            from kafka.net.manager import KafkaConnectionManager

            from holdfast.connectors.kafka.client.sockets import Loop

            settings, first = python_settings(self._config), not self._seen
            named = str(settings["bootstrap_servers"]).split(",")
            settings["bootstrap_servers"] = [*named, *(server for server in self._seen if server not in named)]
            self._net = Loop()
            # fmt: off
            self._manager = KafkaConnectionManager(
                self._net, max_in_flight_requests_per_connection=1000, request_timeout_ms=REQUEST * 1000,
                receive_message_max_bytes=LARGEST, **settings,
            )
            # fmt: on
            # Of several, the one that is tried first may hang: then there is time for the others.
            each = max(3.0, REQUEST / len(settings["bootstrap_servers"]))
            left = max(1.0, min(each, deadline - time.monotonic()))
            connect(self._manager, self._config, timeout_ms=int(left * 1000), first=first)
            self._remember()
        return self._manager

    def _remember(self) -> None:
        self._seen = tuple(f"{broker.host}:{broker.port}" for broker in self._manager.cluster.brokers())

    def _check_permanent(self, error: Exception) -> None:
        """Raise what no waiting mends."""
        from kafka.errors import UnsupportedVersionError

        if isinstance(error, UnsupportedVersionError):
            raise ConfigError(
                f"{self._where} cannot do what holdfast asks of it: {error}. Upgrade the brokers to version 4 or newer"
            ) from error

    @property
    def _where(self) -> str:
        return f"{self._owner + ': ' if self._owner else ''}Kafka at {self._config['bootstrap.servers']}"

    def silent(self, problem: Exception, timeout: float) -> SinkError:
        """The error for brokers that have not answered for so long."""
        name, text = type(problem).__name__, str(problem)
        # kafka-python's errors name themselves.
        text = text if isinstance(problem, SinkError) or text.startswith(name) else f"{name}: {text}"
        return SinkError(
            f"{self._where} did not answer in {timeout:.0f} s: {without_secrets(text, self._config)}. Trying again may "
            "help; check that the brokers run and can be reached from here, bootstrap_servers and security.protocol"
        )

    def send(self, request: Any, node: int | None = None) -> Any:
        """Send a request, to one broker or to any; await the answer."""
        return self._manager.send(request, node_id=node, request_timeout_ms=REQUEST * 1000)

    async def brokers(self, topic: str) -> list[int]:
        """The numbers of the brokers that are alive now, once all partitions of this internal topic have a leader.

        A broker that is away leads nothing, so these are all that can know what the topic holds.
        """
        from kafka.protocol.metadata import MetadataRequest

        wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = await self.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False, max_version=9))
        self._manager.cluster.update_metadata(answer)
        self._remember()
        alive = [broker.node_id for broker in answer.brokers]
        # A topic nobody has made yet has no partitions; one that may not be described shows none: then all who are
        # alive are believed to be all.
        headless = [p for t in answer.topics if not t.error_code for p in t.partitions if p.leader_id not in alive]
        if headless or not alive:
            raise NotYetError(f"{len(headless)} partitions of {topic} have no leader yet")
        return alive

    async def coordinators(self, kind: int, keys: Sequence[str]) -> dict[str, int]:
        """{group or transactional id: the broker that coordinates it}."""
        from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

        if len(self._known) > _KNOWN:
            self._known.clear()
        unknown = [key for key in keys if (kind, key) not in self._known]
        if unknown:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=unknown, min_version=4)
            answer = await self.send(request)
            for found in answer.coordinators:
                if found.error_code in MOVING:
                    raise NotYetError(f"Kafka has no coordinator yet for {_KINDS[kind]} {found.key!r}; try again")
                if found.error_code:
                    raise self.refused(kind, found.error_code, found.key) or SinkError(
                        f"{self._where} names no coordinator for {_KINDS[kind]} {found.key!r}: "
                        f"{found.error_message or f'error {found.error_code}'}; try again"
                    )
            self._known.update({(kind, found.key): found.node_id for found in answer.coordinators})
        return {key: self._known[kind, key] for key in keys}

    def refused(self, kind: int, code: int, key: str) -> ConfigError | None:
        """The error for a missing right, None for any other code."""
        if kind == GROUP:
            return denied(code, "read the offsets of a group", self._config, rights=self._rights, group=key)
        return denied(code, "find or describe a transaction", self._config, transactional_id=key)


async def _nothing() -> None:
    """Just connect."""
