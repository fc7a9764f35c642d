"""The OpenAPI document of what is under `/api`: one table, from which the routes are made as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast import __version__
from holdfast.dashboard.answers import schema

#: the most checkpoints a page and a summary may have
LONGEST_PAGE, LONGEST_SUMMARY = 500, 100_000


@dataclass(frozen=True)
class Query:
    """A number in the address, after the `?`."""

    name: str
    about: str
    least: int
    most: int
    default: int | None


@dataclass(frozen=True)
class Call:
    """One thing that can be asked."""

    path: str
    name: str
    about: str
    method: str = "get"
    query: tuple[Query, ...] = ()
    #: field -> type of the body
    body: tuple[tuple[str, str], ...] = ()
    media: str = "application/json"
    #: what may go wrong, beside a wrong Host or Origin
    codes: tuple[int, ...] = ()


#: a checkpoint's number has at most 18 digits
HIGHEST = 10**18 - 1
BEFORE = Query("before", "Only checkpoints below this number.", 0, HIGHEST, None)
LIMIT = Query("limit", "At most so many checkpoints.", 1, LONGEST_PAGE, 50)
LAST = Query("last", "So many of the newest checkpoints.", 1, LONGEST_SUMMARY, 1000)
_ONE = "/api/pipelines/{slug}"
CALLS = (
    Call("/api/pipelines", "overview", "All pipelines, the worst first."),
    Call("/api/events", "events", "Server-sent events: `change` names the pipelines that changed.",
         media="text/event-stream", codes=(503,)),
    Call(_ONE, "pipeline", "One pipeline: status, timeline, plots, sinks, drivers, what is stuck.", codes=(404, 503)),
    Call(f"{_ONE}/checkpoints", "checkpoints", "A page of the history, newest first.", query=(BEFORE, LIMIT),
         codes=(400, 404, 503)),
    Call(f"{_ONE}/checkpoints/{{checkpoint_id}}", "checkpoint", "One checkpoint, with its records as they are on disk.",
         codes=(400, 404, 503)),
    Call(f"{_ONE}/summary", "summary", "Least, median, 99th percentile and greatest.", query=(LAST,),
         codes=(400, 404, 503)),
    Call(f"{_ONE}/configuration", "configuration", "How it is set up, secrets hidden.", codes=(404, 503)),
    Call(f"{_ONE}/transactions", "transactions", "Asks the Kafka brokers what is open for this pipeline.",
         codes=(404, 503)),
    Call(f"{_ONE}/actions", "plan", "What an order would mean, and the token that confirms it.", "post",
         body=(("how", "string"), ("checkpoint_id", "integer"), ("sink", "string")),
         codes=(400, 401, 403, 404, 409, 503)),
    Call(f"{_ONE}/actions/savepoint", "plan_savepoint", "What a savepoint would mean, and the token that confirms it.",
         "post", body=(), codes=(400, 401, 403, 404, 409, 503)),
    Call(f"{_ONE}/actions/abort", "plan_abort", "What aborting an undecided transaction would mean, and its token.",
         "post", body=(("transactional_id", "string"),), codes=(400, 401, 403, 404, 409, 503)),
    Call(f"{_ONE}/actions/confirm", "confirm", "Carry out an order, with its token.", "post",
         body=(("token", "string"),), codes=(400, 401, 403, 404, 409, 503)),
)  # fmt: skip
_WORDS = {
    400: "a parameter is wrong", 401: "the operator's word is missing or wrong", 403: "the dashboard is read-only",
    404: "there is no such pipeline or checkpoint", 409: "the order cannot be carried out now",
    503: "the files cannot be read now, or too many listen",
}  # fmt: skip
_PATH = {"checkpoint_id": {"type": "integer", "minimum": 0, "maximum": HIGHEST}}


def document(slugs: Sequence[str]) -> dict[str, Any]:
    """The whole document, for these pipelines."""
    paths: dict[str, Any] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method] = _operation(call, {**_PATH, "slug": _one_of(slugs)})
    return {
        "openapi": "3.1.0",
        "info": {"title": "holdfast dashboard", "version": __version__, "summary": "The data of every page."},
        "paths": paths,
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error", "message"],
                    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
                }
            },
            "securitySchemes": {"operator": {"type": "http", "scheme": "bearer"}},
        },
    }


def _one_of(slugs: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(slugs)}


def _operation(call: Call, path: Mapping[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": kind}
        for name, kind in path.items()
        if f"{{{name}}}" in call.path
    ]
    for q in call.query:
        number: dict[str, Any] = {"type": "integer", "minimum": q.least, "maximum": q.most}
        default = {} if q.default is None else {"default": q.default}
        parameters.append({"name": q.name, "in": "query", "description": q.about, "schema": number | default})
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    shape = {} if call.media != "application/json" else {"schema": schema(call.name)}
    answers: dict[str, Any] = {"200": {"description": call.about, "content": {call.media: shape}}}
    for code in call.codes:
        answers[str(code)] = {"description": _WORDS[code], "content": error}
    told: dict[str, Any] = {"operationId": call.name, "summary": call.about, "parameters": parameters}
    if call.method == "post":
        properties = {name: {"type": kind} for name, kind in call.body}
        body = {
            "type": "object", "required": list(properties), "properties": properties, "additionalProperties": False,
        }  # fmt: skip
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        told["security"] = [{"operator": []}]
    return {**told, "responses": answers}
