"""`hf.metrics(port)`: the metrics of every pipeline of this process, for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

from holdfast.core.options import checked, whole
from holdfast.errors import ConfigError, MissingExtraError
from holdfast.spark.running import RunningQuery, announce
from holdfast.telemetry.names import COUNTER, METRICS
from holdfast.telemetry.samples import Metrics

Port = Annotated[int, whole(0, 65535, "a number from 0 to 65535")]


class Pipelines:
    """The metrics of each pipeline that runs or has run in this process, since somebody wants to know."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Metrics] = {}
        self._queries: dict[str, RunningQuery] = {}
        self.forget = announce(self._started)

    def _started(self, query: RunningQuery) -> None:
        with self._lock:
            self._queries[query.location] = query
            if query.location not in self._known:
                location = query.location
                self._known[location] = Metrics(query.pipeline, location, lambda: self._progress(location))

    def _progress(self, location: str) -> Mapping[str, Any] | None:
        return self._queries[location].last_progress

    def __iter__(self) -> Iterator[Metrics]:
        with self._lock:
            return iter(list(self._known.values()))


class MetricsServer:
    """Answers at /metrics until it is closed."""

    def __init__(self, host: str, port: int, close: Callable[[], None]) -> None:
        self.host, self.port, self._close = host, port, close

    @property
    def url(self) -> str:
        """Where Prometheus finds it."""
        return f"http://{self.host}:{self.port}/metrics"

    def close(self) -> None:
        """Answer no more."""
        close, self._close = self._close, lambda: None
        close()

    def __repr__(self) -> str:
        """Where it is."""
        return f"MetricsServer({self.url})"


@checked
def metrics(port: Port, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the metrics of all pipelines of this process for Prometheus, until the answer is closed.

    Call it before or after queries are started; they appear when they start. `host="0.0.0.0"` lets other machines ask;
    port 0 takes a free one.
    """
    pipelines = Pipelines()
    try:
        server = serve(lambda: pipelines, port, host)
    except BaseException:
        pipelines.forget()
        raise
    close = server.close

    def end() -> None:
        pipelines.forget()
        close()

    return MetricsServer(server.host, server.port, end)


@checked
def serve(pipelines: Callable[[], Iterable[Metrics]], port: Port, host: str = "127.0.0.1") -> MetricsServer:
    """Answer Prometheus; `pipelines` is asked at each scrape."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtraError("metrics need one more package: pip install 'holdfast[metrics]'") from error

    class Answers(Collector):
        def collect(self) -> Iterator[Any]:
            samples = [sample for one in pipelines() for sample in one.samples()]
            for metric in METRICS:
                kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
                family = kind(metric.name, metric.help, labels=["pipeline", *metric.labels])
                for sample in samples:
                    if sample.name == metric.name:
                        family.add_metric(
                            [sample.labels[label] for label in ("pipeline", *metric.labels)], sample.value
                        )
                yield family

        def describe(self) -> Iterator[Any]:
            return iter(())  # else it is asked for everything before the query runs

    registry = CollectorRegistry()
    registry.register(Answers())
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(f"metrics cannot be served at {host}:{port}: {error}. Choose another port") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return MetricsServer(host, server.server_port, stop)
