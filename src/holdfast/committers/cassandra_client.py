"""Connections to Cassandra: sessions shared within a process, errors that say what to do.

Connecting takes many times as long as a request, so a session is kept for a while when its last user is done, for the
next delivery of the same worker process. One that failed is not: the next user connects anew.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.committers.cassandra_failures import explain
from holdfast.committers.cassandra_settings import Settings, tls_context
from holdfast.errors import ConfigError, SinkError

if TYPE_CHECKING:
    from cassandra.cluster import Session
    from cassandra.query import PreparedStatement

#: seconds a session without a user is kept
IDLE = 60.0
_KEPT = "Nothing is lost: what is decided stays in the log and is delivered when Cassandra is back"


class Client:
    """A session, and the statements prepared in it."""

    def __init__(self, settings: Settings) -> None:
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy

        self.settings = settings
        self._prepared: dict[str, PreparedStatement] = {}
        policy = DCAwareRoundRobinPolicy(settings.local_dc or "")
        profile = ExecutionProfile(TokenAwarePolicy(policy), request_timeout=settings.timeout)
        login = None
        if settings.username is not None:
            login = PlainTextAuthProvider(settings.username, settings.password)
        self._cluster = Cluster(
            list(settings.contact_points),
            settings.port,
            # Spoken by every Cassandra since 3.0, so that no version has to be found by trying.
            protocol_version=4,
            auth_provider=login,
            ssl_context=tls_context(settings.tls),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=settings.timeout,
            control_connection_timeout=settings.timeout,
            # A cluster's whole schema is read otherwise, at every connect.
            schema_metadata_enabled=False,
        )
        try:
            self.session: Session = self._cluster.connect()
        except BaseException:
            self._cluster.shutdown()
            raise

    def prepare(self, statement: str) -> PreparedStatement:
        """Prepared once for a session."""
        if statement not in self._prepared:
            self._prepared[statement] = self.session.prepare(statement)
        return self._prepared[statement]

    def know_replicas(self, keyspace: str) -> None:
        """Read where this keyspace's rows are, so that requests go to a replica at once."""
        if keyspace not in self._cluster.metadata.keyspaces:
            # Without waiting until all nodes agree on the schema: some may be down.
            self._cluster.refresh_keyspace_metadata(keyspace, max_schema_agreement_wait=0)

    def query(self, statement: str, values: tuple[Any, ...] = (), consistency: str | None = None) -> list[Any]:
        """Run a prepared statement; all its rows."""
        bound = self.prepare(statement).bind(values)
        bound.is_idempotent = True
        if consistency is not None:
            bound.consistency_level = consistency_level(consistency)
        return list(self.session.execute(bound))

    def close(self) -> None:
        """Close connections and end the session's threads."""
        self._cluster.shutdown()


def consistency_level(name: str) -> int:
    """Cassandra's number of a consistency level."""
    from cassandra import ConsistencyLevel

    return int(ConsistencyLevel.name_to_value[name])


# -- sessions of this process -----------------------------------------------------------------------------------------


@dataclass
class _Shared:
    client: Client
    users: int = 0
    timer: threading.Timer | None = None


class _Sessions:
    """One session for each settings, closed when nobody has used it for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[Settings, _Shared] = {}
        self._connecting: dict[Settings, threading.Lock] = {}

    def take(self, settings: Settings) -> _Shared:
        with self._lock:
            connecting = self._connecting.setdefault(settings, threading.Lock())
        # One cluster that hangs must not hold up the users of another (rule 13).
        with connecting:
            return self._use(settings) or self._add(settings, Client(settings))

    def _add(self, settings: Settings, client: Client) -> _Shared:
        with self._lock:
            shared = self._shared[settings] = _Shared(client, users=1)
            return shared

    def _use(self, settings: Settings) -> _Shared | None:
        with self._lock:
            shared = self._shared.get(settings)
            if shared is None:
                return None
            if shared.timer is not None:
                shared.timer.cancel()
                shared.timer = None
            shared.users += 1
            return shared

    def give_back(self, shared: _Shared, *, broken: bool) -> None:
        settings = shared.client.settings
        with self._lock:
            shared.users -= 1
            if broken and self._shared.get(settings) is shared:
                del self._shared[settings]
            if shared.users:
                return
            if self._shared.get(settings) is shared:
                shared.timer = threading.Timer(IDLE, self._expire, [shared])
                shared.timer.daemon = True
                shared.timer.start()
                return
        shared.client.close()

    def _expire(self, shared: _Shared) -> None:
        with self._lock:
            if shared.users or self._shared.get(shared.client.settings) is not shared:
                return
            del self._shared[shared.client.settings]
        shared.client.close()

    def close_idle(self) -> None:
        with self._lock:
            idle = [shared for shared in self._shared.values() if not shared.users]
            for shared in idle:
                del self._shared[shared.client.settings]
                if shared.timer is not None:
                    shared.timer.cancel()
        for shared in idle:
            shared.client.close()


_sessions = _Sessions()
#: What a parent process left in a forked child: kept, because letting it go would close the parent's connections.
_inherited: list[_Sessions] = []


def _after_fork() -> None:
    global _sessions
    _inherited.append(_sessions)
    _sessions = _Sessions()


os.register_at_fork(after_in_child=_after_fork)


class Lease:
    """A client held for longer than a block; `give_back` it, broken or not."""

    def __init__(self, settings: Settings, who: str = "") -> None:
        with reaching(settings, who):
            self._shared = _sessions.take(settings)
        self._owner = _sessions
        self.broken = False

    @property
    def client(self) -> Client:
        """The shared client."""
        return self._shared.client

    def give_back(self) -> None:
        """Once, when done."""
        self._owner.give_back(self._shared, broken=self.broken)


@contextmanager
def borrow(settings: Settings, who: str = "") -> Iterator[Client]:
    """A shared client; after an error it is not used again. `who` is named by errors."""
    lease = Lease(settings, who)
    try:
        with reaching(settings, who):
            yield lease.client
    except BaseException:
        lease.broken = True
        raise
    finally:
        lease.give_back()


def close_idle() -> None:
    """Close this process's sessions that nobody uses; the next user connects anew."""
    _sessions.close_idle()


@contextmanager
def reaching(settings: Settings, who: str = "") -> Iterator[None]:
    """Errors of the driver as errors that name the cluster; which may work later, and which cannot."""
    from cassandra import (
        DependencyException,
        DriverException,
        InvalidRequest,
        Unauthorized,
        UnresolvableContactPoints,
    )
    from cassandra.cluster import NoHostAvailable
    from cassandra.connection import ConnectionBusy, ConnectionException
    from cassandra.protocol import ErrorMessage, SyntaxException

    where = f"{who}: Cassandra at {settings.hosts}" if who else f"Cassandra at {settings.hosts}"
    try:
        yield
    except (InvalidRequest, Unauthorized, SyntaxException) as error:
        raise ConfigError(f"{where} refused: {error}") from error
    except DependencyException as error:
        raise ConfigError(f"the Cassandra driver does not work with this Python: {error}") from error
    except UnresolvableContactPoints as error:
        raise SinkError(f"{where}: no address is known for it: check contact_points and DNS. {_KEPT}") from error
    except NoHostAvailable as error:
        raise _unreachable(where, settings, error) from error
    except (DriverException, ConnectionException, ConnectionBusy, ErrorMessage) as error:
        reason = explain(error) or f"{type(error).__name__}: {error}"
        raise SinkError(f"{where} did not answer as it should: {reason}. {_KEPT}") from error


def _unreachable(where: str, settings: Settings, error: Any) -> SinkError | ConfigError:
    from cassandra import AuthenticationFailed

    errors = error.errors if isinstance(error.errors, Mapping) else {}
    # The driver asks every host in turn, so that what one of them said about replicas is in here, too.
    reasons = "; ".join(f"{host}: {explain(why) or why}" for host, why in errors.items())
    if not reasons:
        reasons = f"no host is in datacenter {settings.local_dc!r}" if settings.local_dc else str(error)
    refusals = [str(why) for why in errors.values() if isinstance(why, AuthenticationFailed)]
    if not refusals:
        return SinkError(f"{where} cannot be reached: {reasons}. {_KEPT}")
    if settings.username is None:
        return ConfigError(f"{where} lets nobody in without a password: give username and password. {reasons}")
    what = f"{where} does not let user {settings.username!r} in: {reasons}"
    # A cluster that is partly down cannot look passwords up: that passes by itself.
    if any(word in text.lower() for text in refusals for word in ("incorrect", "not permitted")):
        return ConfigError(f"{what}. Mend username and password, then start again; {_KEPT[0].lower()}{_KEPT[1:]}")
    return SinkError(f"{what}. {_KEPT}")
