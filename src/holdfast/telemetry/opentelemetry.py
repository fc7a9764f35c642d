"""`hf.traces()`: an OpenTelemetry trace for each checkpoint, with a span for each phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from holdfast.checkpoint.history import CheckpointStats
from holdfast.core.hiding import hide_text
from holdfast.core.options import Rule, checked
from holdfast.core.states import State
from holdfast.core.version import __version__
from holdfast.errors import HoldfastError, MissingExtraError
from holdfast.spark.running import RunningQuery
from holdfast.telemetry.follow import Follower

_ENDPOINT = Rule(
    "the http:// or https:// address of a collector",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
)
_TRACES = "/v1/traces"
#: in the order in which they happen
PHASES = ("tasks", "decide", "commit", "notify")


@checked
def traces(
    endpoint: Annotated[str, _ENDPOINT] | None = None, *, hide_also: Callable[[str], str] = lambda text: text
) -> Follower:
    """Send a trace of every checkpoint of this process's queries by OTLP over HTTP, until it is closed.

    `endpoint` is the collector's address (http://host:4318); without it OpenTelemetry's own environment variables say
    where to send (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS). `hide_also` takes secrets of your own out
    of error texts.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtraError("traces need more packages: pip install 'holdfast[opentelemetry]'") from error
    whole = None if endpoint is None else endpoint.rstrip("/").removesuffix(_TRACES) + _TRACES
    resource = Resource.create({"service.name": "holdfast", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=whole)))
    tracer = provider.get_tracer("holdfast", __version__)

    def tell(query: RunningQuery) -> Traces:
        return Traces(query, tracer, lambda text: hide_text(hide_also(text)))

    return Follower("OpenTelemetry", tell, close=provider.shutdown)


class Traces:
    """The traces of one query run."""

    def __init__(self, query: RunningQuery, tracer: Any, hidden: Callable[[str], str]) -> None:
        self._query, self._tracer, self._hidden = query, tracer, hidden

    def started(self) -> None:
        """See Told; a run can last for months, so it is no span."""

    def checkpoint(self, stats: CheckpointStats) -> None:
        """See Told. Phases are drawn one after the other: what the history knows is how long each took."""
        from opentelemetry import trace
        from opentelemetry.trace import Status, StatusCode

        if stats.started is None:
            return
        at = stats.started * 1_000_000
        whole = self._tracer.start_span("holdfast.checkpoint", start_time=at, attributes=self._about(stats))
        inside = trace.set_span_in_context(whole)
        for phase in (*PHASES, *(name for name in stats.durations if name not in PHASES)):
            if phase in stats.durations:
                span = self._tracer.start_span(f"holdfast.{phase}", context=inside, start_time=at)
                if phase == "commit":
                    self._sinks(span, stats, at)
                at += int(stats.durations[phase] * 1e9)
                span.end(end_time=at)
        if stats.status != State.COMPLETE:
            whole.set_status(Status(StatusCode.ERROR, self._hidden(stats.error or stats.status)))
        whole.end(end_time=at)

    def ended(self, failure: HoldfastError | None) -> None:
        """See Told."""

    def _about(self, stats: CheckpointStats) -> dict[str, Any]:
        return {
            "holdfast.pipeline": self._query.pipeline,
            "holdfast.delivery": self._query.delivery,
            "holdfast.checkpoint_id": stats.checkpoint_id,
            "holdfast.generation": -1 if stats.generation is None else stats.generation,
            "holdfast.status": stats.status,
            "holdfast.restored": stats.restored,
            "holdfast.rows": stats.rows,
            "holdfast.bytes": stats.bytes,
            "holdfast.subtasks": stats.subtasks,
            "spark.run_id": self._query.run_id or "",
        }

    def _sinks(self, span: Any, stats: CheckpointStats, at: int) -> None:
        for sink, told in stats.sinks.items():
            facts = {"sink": sink, "outcome": str(told.get("outcome", "")), "rows": int(told.get("rows", 0))}
            span.add_event("sink", facts, timestamp=at)
