"""kafka-python's event loop, with one more manner: it closes sockets whose connection failed, which it leaves open."""

from __future__ import annotations

from typing import Any

from kafka.net.selector import NetworkSelector


class Loop(NetworkSelector):  # type: ignore[misc]
    """Closes everything it has waited for; a restarting broker refuses many connections."""

    def __init__(self) -> None:
        super().__init__()
        self._waited: set[Any] = set()

    def wait_write(self, fileobj: Any, timeout_at: float | None = None) -> Any:
        """See NetworkSelector; every connection begins with this."""
        self._waited = {known for known in self._waited if known.fileno() >= 0}
        self._waited.add(fileobj)
        return super().wait_write(fileobj, timeout_at)

    def close(self) -> None:
        """See NetworkSelector."""
        super().close()
        while self._waited:
            self._waited.pop().close()
