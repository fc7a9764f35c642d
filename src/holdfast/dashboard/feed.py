"""Says when a pipeline changed, as server-sent events: one look at the files serves all who listen."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from holdfast.dashboard.documents import READ_ERRORS
from holdfast.dashboard.places import Place, Places

#: seconds after which a silent line says that we are still there
HEARTBEAT = 15.0
#: so many may listen at the same time
LISTENERS = 100


class Listener:
    """One open page: which pipelines changed since it was last told."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.wake = asyncio.Event()


class Feed:
    """Looks at all pipelines now and then, for as long as somebody listens."""

    def __init__(self, places: Places, every: float) -> None:
        self._places, self._every = places, every
        self._seen: dict[str, str] = {}
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        #: tells a page that it talks to another process than before
        self.server = uuid.uuid4().hex

    @property
    def full(self) -> bool:
        """Whether nobody else can listen."""
        return len(self._listeners) >= LISTENERS

    async def events(self) -> AsyncIterator[str]:
        """What one page is sent."""
        listener = Listener()
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            yield f"retry: 2000\nevent: hello\ndata: {json.dumps({'server': self.server})}\n\n"
            while not self._closed:
                try:
                    await asyncio.wait_for(listener.wake.wait(), HEARTBEAT)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                listener.wake.clear()
                changed, listener.changed = sorted(listener.changed), set()
                yield f"event: change\ndata: {json.dumps({'pipelines': changed})}\n\n"
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None
                self._seen.clear()

    def close(self) -> None:
        """Nobody is told anything any more: every stream ends."""
        self._closed = True
        for listener in self._listeners:
            listener.wake.set()

    async def _look(self) -> None:
        while True:
            await asyncio.gather(*(self._look_at(place) for place in self._places))
            await asyncio.sleep(self._every)

    async def _look_at(self, place: Place) -> None:
        now = await run_in_threadpool(_fingerprint, place)
        before = self._seen.get(place.slug)
        self._seen[place.slug] = now
        if before is not None and before != now:
            # Else whoever asks now could be given what was read before the change, and nobody would tell them again.
            await run_in_threadpool(place.forget)
            self.tell(place.slug)

    def tell(self, slug: str) -> None:
        """This pipeline changed."""
        for listener in self._listeners:
            listener.changed.add(slug)
            listener.wake.set()


def _fingerprint(place: Place) -> str:
    try:
        return place.fingerprint()
    except READ_ERRORS as error:
        return f"error: {error}"
