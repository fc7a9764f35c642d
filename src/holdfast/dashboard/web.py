"""The routes: each page, and its data under `/api`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.core.hiding import hide_text
from holdfast.dashboard import documents, openapi
from holdfast.dashboard.actions import Actions
from holdfast.dashboard.feed import Feed
from holdfast.dashboard.guard import LOOPBACK, Guard
from holdfast.dashboard.pages import Pages
from holdfast.dashboard.places import Place, Places
from holdfast.errors import HoldfastError, StorageError

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: bytes that a request may send
LONGEST_BODY = 1 << 16
_BEARER = "bearer "


class Site:
    """All that is served for some places."""

    def __init__(
        self,
        places: Places,
        *,
        every: float = 1.0,
        allow_actions: bool = False,
        kafka: Mapping[str, str] | None = None,
    ) -> None:
        self.places, self.feed = places, Feed(places, every)
        self._kafka = dict(kafka or {})
        self.actions = Actions(self._kafka, places.savepoints) if allow_actions else None
        self._pages = Pages(places, allow_actions=allow_actions)
        shipped = (files("holdfast.dashboard") / "static").iterdir()
        # Every file that is served is known from the start: no part of an address ever becomes a path.
        self._static = {f.name: f.read_bytes() for f in shipped if f.name[f.name.rfind(".") :] in _KINDS}

    def app(self, hosts: Collection[str] = LOOPBACK) -> Starlette:
        """The application, for these names of the machine."""
        calls: dict[str, Any] = {
            "overview": self._json(lambda request: documents.overview(self.places)),
            "events": self._events,
            "pipeline": self._json(lambda request: documents.pipeline(self._place(request))),
            "checkpoints": self._json(self._checkpoints),
            "checkpoint": self._json(self._checkpoint),
            "summary": self._json(self._summary),
            "configuration": self._json(lambda request: documents.configuration(self._place(request))),
            "transactions": self._json(self._transactions),
            "plan": self._plan,
            "plan_savepoint": self._plan_savepoint,
            "plan_abort": self._plan_abort,
            "confirm": self._confirm,
        }
        routes = [Route(c.path, calls[c.name], methods=[c.method.upper()], name=c.name) for c in openapi.CALLS]
        routes += [
            Route("/api/openapi.json", self._openapi),
            Route("/static/{name}", self._file),
            Route("/favicon.ico", self._icon),
            Route("/", self._page("overview", lambda request: documents.overview(self.places))),
        ]
        for path, template, data in (
            ("", "pipeline", lambda request: documents.pipeline(self._place(request))),
            ("/checkpoints", "checkpoints", self._checkpoints),
            ("/checkpoints/{checkpoint_id}", "checkpoint", self._checkpoint),
            ("/summary", "summary", self._summary),
            ("/configuration", "configuration", lambda request: documents.configuration(self._place(request))),
            ("/transactions", "transactions", self._transactions),
        ):
            routes.append(Route("/p/{slug}" + path, self._page(template, data)))
        errors: dict[Any, Any] = {HTTPException: self._refused, HoldfastError: self._failed, OSError: self._failed}
        app = Starlette(routes=routes, middleware=[Middleware(Guard, hosts=hosts)], exception_handlers=errors)
        app.router.redirect_slashes = False  # an address is one of those described, or not found
        return app

    # -- pages and data ---------------------------------------------------------------------------------------------

    def _page(self, template: str, data: Callable[[Request], Any]) -> Any:
        async def page(request: Request) -> Response:
            def work() -> str:
                return self._pages.render(template, data(request), request.path_params.get("slug"))

            return HTMLResponse(await run_in_threadpool(work))

        return page

    def _json(self, data: Callable[[Request], Any]) -> Any:
        async def call(request: Request) -> Response:
            return JSONResponse(await run_in_threadpool(data, request))

        return call

    def _place(self, request: Request) -> Place:
        place = self.places.get(request.path_params["slug"])
        if place is None:
            raise HTTPException(404, "there is no such pipeline here")
        return place

    def _checkpoints(self, request: Request) -> Any:
        before, limit = _number(request, openapi.BEFORE), _number(request, openapi.LIMIT)
        assert limit is not None
        return documents.checkpoints(self._place(request), before, limit)

    def _checkpoint(self, request: Request) -> Any:
        place, text = self._place(request), request.path_params["checkpoint_id"]
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise HTTPException(400, "a checkpoint is named by its number")
        found = documents.checkpoint(place, int(text))
        if found is None:
            raise HTTPException(404, f"nothing is known of checkpoint {int(text)}: it is not there yet, or forgotten")
        return found

    def _summary(self, request: Request) -> Any:
        last = _number(request, openapi.LAST)
        assert last is not None
        return documents.summary(self._place(request), last)

    def _transactions(self, request: Request) -> Any:
        return documents.transactions(self._place(request), self._kafka)

    async def _events(self, request: Request) -> Response:
        if self.feed.full:
            raise HTTPException(503, "too many pages listen: close some, or wait")
        return StreamingResponse(self.feed.events(), media_type="text/event-stream")

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi.document([place.slug for place in self.places]))

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404, "there is no such file")
        kind = _KINDS[name[name.rfind(".") :]]
        return Response(self._static[name], media_type=kind, headers={"Cache-Control": "no-cache"})

    async def _icon(self, request: Request) -> Response:
        return Response(self._static["icon.svg"], media_type="image/svg+xml")

    # -- actions ----------------------------------------------------------------------------------------------------

    async def _plan(self, request: Request) -> Response:
        place, actions = self._allowed(request)
        body = await _body(request, {"how": str, "checkpoint_id": int, "sink": str})
        return await self._acted(lambda: actions.plan(place, body["how"], body["checkpoint_id"], body["sink"]))

    async def _plan_savepoint(self, request: Request) -> Response:
        place, actions = self._allowed(request)
        await _body(request, {})
        return await self._acted(lambda: actions.plan_savepoint(place))

    async def _plan_abort(self, request: Request) -> Response:
        place, actions = self._allowed(request)
        body = await _body(request, {"transactional_id": str})
        return await self._acted(lambda: actions.plan_abort(place, body["transactional_id"]))

    async def _confirm(self, request: Request) -> Response:
        place, actions = self._allowed(request)
        body = await _body(request, {"token": str})
        answer = await self._acted(lambda: actions.confirm(place, body["token"]))
        self.feed.tell(place.slug)
        return answer

    def _allowed(self, request: Request) -> tuple[Place, Actions]:
        if self.actions is None:
            raise HTTPException(403, "this dashboard only reads: start it with --allow-actions")
        word = request.headers.get("authorization", "")
        if not word.lower().startswith(_BEARER) or not self.actions.knows(word[len(_BEARER) :].strip()):
            why = "the operator's word is missing or wrong: the dashboard printed it where it was started"
            raise HTTPException(401, why, headers={"WWW-Authenticate": "Bearer"})
        return self._place(request), self.actions

    async def _acted(self, act: Callable[[], dict[str, Any]]) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(act))
        except StorageError:
            raise
        except HoldfastError as error:
            raise HTTPException(409, str(error)) from error

    # -- errors -----------------------------------------------------------------------------------------------------

    def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self._error(request, error.status_code, "refused", error.detail, error.headers)

    def _failed(self, request: Request, error: Exception) -> Response:
        return self._error(request, 503, type(error).__name__, str(error))

    def _error(
        self, request: Request, code: int, kind: str, message: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        text = hide_text(message)
        if request.url.path.startswith("/api"):
            return JSONResponse({"error": kind, "message": text}, status_code=code, headers=headers)
        page = self._pages.render("error", {"code": code, "message": text}, None)
        return HTMLResponse(page, status_code=code, headers=headers)


def _number(request: Request, query: openapi.Query) -> int | None:
    values = request.query_params.getlist(query.name)
    if not values:
        return query.default
    text = values[0]
    number = int(text) if len(values) == 1 and text.isascii() and text.isdigit() and len(text) <= 18 else None
    if number is None or not query.least <= number <= query.most:
        raise HTTPException(400, f"{query.name} must be a number from {query.least} to {query.most}")
    return number


async def _body(request: Request, fields: Mapping[str, type]) -> dict[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > LONGEST_BODY:
            raise HTTPException(400, f"a request has at most {LONGEST_BODY} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body must be a JSON object") from None
    if not isinstance(body, dict) or set(body) != set(fields):
        raise HTTPException(400, f"the body must be an object with {', '.join(fields) or 'nothing in it'}")
    for name, kind in fields.items():
        if not isinstance(body[name], kind) or isinstance(body[name], bool):
            raise HTTPException(400, f"{name} must be a {'number' if kind is int else 'text'}")
    return body
