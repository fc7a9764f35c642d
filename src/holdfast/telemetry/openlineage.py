"""`hf.lineage(url)`: OpenLineage events of each query run and each checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from holdfast.checkpoint.history import CheckpointStats
from holdfast.core.hiding import hide, hide_text
from holdfast.core.options import SECONDS, SECRET, Rule, checked
from holdfast.core.states import State
from holdfast.core.version import __version__
from holdfast.errors import HoldfastError, MissingExtraError
from holdfast.spark.running import RunningQuery
from holdfast.telemetry import datasets
from holdfast.telemetry.follow import Follower, UnreachableError

logger = logging.getLogger("holdfast")
#: names the code that speaks, as the specification wants: a URI, which need not be a page
PRODUCER = f"urn:holdfast:{__version__}"
_URL = Rule(
    "the http:// or https:// address of an OpenLineage receiver",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
)
_SCHEMA = "urn:holdfast:facets:1"


@checked
def lineage(
    url: Annotated[str, _URL],
    *,
    namespace: str = "holdfast",
    api_key: Annotated[str, SECRET] | None = None,
    timeout: Annotated[float, SECONDS] = 5.0,
    hide_also: Callable[[str], str] = lambda text: text,
) -> Follower:
    """Send OpenLineage events of every query of this process to a receiver (Marquez and the like), until it is closed.

    A run is START, RUNNING for each checkpoint, then COMPLETE or FAIL. `namespace` is that of the jobs, which have the
    pipelines' names. `hide_also` takes secrets of your own out of error texts.
    """
    try:
        from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport
    except ImportError as error:
        raise MissingExtraError("lineage needs one more package: pip install 'holdfast[openlineage]'") from error
    settings: dict[str, Any] = {"url": url, "timeout": timeout, "retry": {"total": 0}}
    if api_key is not None:
        settings["auth"] = ApiKeyTokenProvider({"apiKey": api_key})
    transport = HttpTransport(HttpConfig(**settings))

    def send(event: Any) -> None:
        try:
            transport.emit(event)
        except Exception as error:  # whatever its client raises: it is no failure of the query
            raise UnreachableError(f"{type(error).__name__}: {error}") from error

    def tell(query: RunningQuery) -> Lineage:
        return Lineage(query, namespace, send, lambda text: hide_text(hide_also(text)))

    def close() -> None:
        transport.close(timeout)

    return Follower("OpenLineage", tell, close=close)


class Lineage:
    """The events of one query run."""

    def __init__(
        self, query: RunningQuery, namespace: str, send: Callable[[Any], None], hidden: Callable[[str], str]
    ) -> None:
        from openlineage.client.uuid import generate_new_uuid

        self._query, self._namespace, self._send, self._hidden = query, namespace, send, hidden
        self._run_id = str(generate_new_uuid())
        self._outputs = {sink.name: datasets.of_sink(sink, query.pipeline) for sink in query.sinks}
        self._described: list[str] = []

    def started(self) -> None:
        """See Told."""
        self._emit("START", {}, [], self._written(None))

    def checkpoint(self, stats: CheckpointStats) -> None:
        """See Told."""
        facts = {"checkpointId": stats.checkpoint_id, "status": stats.status, "restored": stats.restored}
        seconds = dict(stats.durations)
        facet = self._facet("Checkpoint", **facts, rows=stats.rows, bytes=stats.bytes, seconds=seconds)
        complete = stats.status == State.COMPLETE
        read = self._read(stats.checkpoint_id) if complete else []
        self._emit("RUNNING", {"holdfast_checkpoint": facet}, read, self._written(stats if complete else None))

    def ended(self, failure: HoldfastError | None) -> None:
        """See Told."""
        from openlineage.client.facet_v2 import error_message_run

        facets: dict[str, Any] = {}
        if failure is not None:
            text = self._hidden(f"{type(failure).__name__} ({failure.action}): {failure}")
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(text, "Python", producer=PRODUCER)
        self._emit("COMPLETE" if failure is None else "FAIL", facets, [], self._written(None))

    # -- parts of an event ------------------------------------------------------------------------------------------

    def _emit(self, state: str, facets: dict[str, Any], inputs: list[Any], outputs: list[Any]) -> None:
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import job_type_job, processing_engine_run

        guarantees = {sink.name: datasets.guarantee(sink) for sink in self._query.sinks}
        promised = self._facet("Delivery", delivery=self._query.delivery, guarantees=guarantees)
        engine = processing_engine_run.ProcessingEngineRunFacet(
            version=_spark_version(), name="spark", openlineageAdapterVersion=__version__, producer=PRODUCER
        )
        kind = job_type_job.JobTypeJobFacet("STREAMING", "HOLDFAST", "PIPELINE", producer=PRODUCER)
        self._send(
            RunEvent(
                eventType=RunState[state],
                eventTime=datetime.now(UTC).isoformat(),
                run=Run(self._run_id, {"holdfast_delivery": promised, "processing_engine": engine, **facets}),
                job=Job(self._namespace, self._query.pipeline, {"jobType": kind}),
                producer=PRODUCER,
                inputs=inputs,
                outputs=outputs,
            )
        )

    def _read(self, checkpoint_id: int) -> list[Any]:
        from openlineage.client.event_v2 import InputDataset

        query = self._query
        self._described = query.described or self._described
        found = datasets.inputs(query.location, checkpoint_id, query.sources, self._described, query.pipeline)
        return [
            InputDataset(
                read.dataset.namespace,
                read.dataset.name,
                inputFacets={"holdfast_offsets": self._input_facet(start=read.start, end=read.end)},
            )
            for read in found
        ]

    def _written(self, stats: CheckpointStats | None) -> list[Any]:
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

        found = []
        for sink, named in self._outputs.items():
            told = {} if stats is None else stats.sinks.get(sink, {})
            facets: dict[str, Any] = {}
            if told:
                facets["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(
                    rowCount=int(told.get("rows", 0)), size=int(told.get("bytes", 0)), producer=PRODUCER
                )
            found.append(OutputDataset(named.namespace, named.name, outputFacets=facets))
        return found

    def _facet(self, kind: str, **told: Any) -> Any:
        from openlineage.client.facet_v2 import RunFacet

        return _own(RunFacet, kind, hide(told))

    def _input_facet(self, **told: Any) -> Any:
        from openlineage.client.facet_v2 import InputDatasetFacet

        return _own(InputDatasetFacet, "Offsets", hide(told))


def _own(base: Any, kind: str, told: dict[str, Any]) -> Any:
    """A facet of ours: it says itself what it is."""
    facet = base(producer=PRODUCER).with_additional_properties(**told)
    facet._schemaURL = f"{_SCHEMA}:{kind}"
    return facet


def _spark_version() -> str:
    import pyspark

    return str(pyspark.__version__)
