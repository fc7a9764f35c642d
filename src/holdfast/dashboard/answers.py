"""What every answer under `/api` has: names and types, for the OpenAPI document. A test holds answers against it."""

from __future__ import annotations

from typing import Any

_TYPES = {
    "text": "string",
    "int": "integer",
    "number": "number",
    "flag": "boolean",
    "object": "object",
    "list": "array",
}
_GLANCE = (
    "slug:text health:text reasons:list pipeline:text? running:flag state:text? rows_per_second:number? "
    "lag_seconds:number? lag_rows:int? pending:int? oldest_pending:int? last_complete:int? completed_at:int? "
    "last_failure:object? recent:list error:text?"
)
_DONE = "done:text message:text reports:list"
_PLAN = "question:text token:text expires_seconds:int"
#: call -> its fields; with `?`, null is one of its values
ANSWERS = {
    "overview": "health:object pipelines:list",
    "pipeline": f"{_GLANCE} status:object stuck:list timeline:list series:list durations:object? drivers:list "
    "savepoints:object actions:list",
    "checkpoints": "slug:text pipeline:text? checkpoints:list newest:int? limit:int older:int? newer:int?",
    "checkpoint": "slug:text pipeline:text? checkpoint_id:int error:text? statistics:object? decided:flag "
    "timestamp:int? sinks:list committables:list committables_total:int records:list damaged:list newest:int?",
    "summary": "slug:text pipeline:text? asked:int checkpoints:int first:int? last:int? statuses:object restored:int "
    "repaired:int rows:int bytes:int measures:object",
    "configuration": "slug:text pipeline:text? holdfast:text location:text lineage:text? sinks:list spark:object",
    "transactions": "slug:text error:text? servers:list transactions:list lost:list",
    "plan": _PLAN,
    "plan_savepoint": _PLAN,
    "plan_abort": _PLAN,
    "confirm": _DONE,
}


def schema(call: str) -> dict[str, Any]:
    """The JSON schema of a call's answer."""
    properties: dict[str, Any] = {}
    for field in ANSWERS[call].split():
        name, _, kind = field.partition(":")
        plain = _TYPES[kind.removesuffix("?")]
        properties[name] = {"type": [plain, "null"] if kind.endswith("?") else plain}
    return {"type": "object", "required": list(properties), "properties": properties}
