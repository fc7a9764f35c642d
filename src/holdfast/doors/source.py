"""`df.writeStream.format("holdfast")`: what Spark calls, in worker processes that know nothing of each other.

For each batch Spark makes a writer twice. The first goes, pickled, to the tasks: so before it does, the process beside
the driver is told of the batch, and says what tasks have to do. The second lives in another process and gets nothing
but what tasks answered; it hands that on, and waits until all is decided and delivered.
"""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.doors.orders import TaskOrder

# Spark imports this in every session that looks for a data source: what is not needed for that is imported later.


@dataclass(frozen=True)
class Told(WriterCommitMessage):
    """What a task answered, as JSON."""

    text: str


class DefaultSource(DataSource):
    """Sinks of holdfast as a sink of Spark's."""

    _sent = False

    @classmethod
    def name(cls) -> str:
        """As it is called in `format`."""
        return "holdfast"

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The one that was sent to another process is there to commit; that which stays plans the batch."""
        self.__dict__.update(state)
        self._sent = True

    def schema(self) -> StructType:
        """Rows are written here, never read."""
        raise NotImplementedError('format("holdfast") writes streams: df.writeStream.format("holdfast")')

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Before the tasks of a batch, and again after them."""
        from holdfast.errors import ConfigError
        from holdfast.spark.failures import marked

        options = {key.lower(): value for key, value in self.options.items()}
        if self._sent:
            return Committing(options)
        with marked():
            if overwrite:
                raise ConfigError(
                    'format("holdfast") appends: Spark has a data source throw away all rows of complete mode first. '
                    "Use append mode, or hf.write_stream, which takes update and complete too"
                )
            return Writing(plan_batch(options, schema.json()))


class Writing(DataSourceStreamArrowWriter):
    """In the tasks."""

    def __init__(self, order: TaskOrder) -> None:
        self._order = order

    def __reduce__(self) -> tuple[Any, ...]:
        """On its way to the tasks it is one that first looks whether it can be carried out there."""
        from holdfast.doors.parcel import packed

        return pickle.loads, (packed(self._order),)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One partition."""
        from holdfast.doors.orders import carry_out

        return Told(carry_out(self._order, iterator).text())


class Committing(DataSourceStreamArrowWriter):
    """On the driver, after the tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Never called."""
        raise NotImplementedError

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Returning lets Spark commit the batch."""
        from holdfast.doors.talk import ask, gone
        from holdfast.spark.failures import marked

        told = [message.text for message in messages if isinstance(message, Told)]
        with marked():
            try:
                ask(_place(self._options), {"do": "commit", "batch": batchId, "answers": told})
            except OSError as error:
                raise gone(error) from error

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task failed, or our own commit did: then what is decided stays so, and there is nothing to undo."""
        from holdfast.doors.talk import ask

        try:
            ask(_place(self._options), {"do": "abort", "batch": batchId})
        except OSError:
            return  # the process is gone, and the next start undoes what nobody decided


def plan_batch(options: Mapping[str, str], schema: str) -> TaskOrder:
    """Tell the process beside the driver of a batch, starting it when there is none."""
    from holdfast.doors import talk
    from holdfast.doors.default_files import refuse_elsewhere
    from holdfast.doors.jvm import driver_of, refuse_speculation
    from holdfast.doors.location import checkpoint_location

    jvm, location = driver_of(os.getpid()), checkpoint_location(options)
    refuse_speculation(jvm)
    refuse_elsewhere(options, jvm)
    place = talk.address(jvm, location)
    request = {"do": "begin", "options": options, "schema": schema}
    with talk.alone(place):
        reply = _asked(place, request)
        if reply is None:
            talk.start(place, {"jvm": [jvm.pid, jvm.started]})
            try:
                reply = talk.ask(place, request)
            except OSError as error:
                raise talk.gone(error) from error
    order: TaskOrder = pickle.loads(base64.b64decode(reply["order"]))  # noqa: S301  from our own process, over our socket
    return order


def _asked(place: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a process that runs already says; None when there is none that goes on with this."""
    from holdfast.doors import talk

    try:
        reply = talk.ask(place, request)
    except (FileNotFoundError, ConnectionError):
        return None
    return None if talk.AGAIN in reply else reply


def _place(options: Mapping[str, str]) -> Path:
    from holdfast.doors.jvm import driver_of
    from holdfast.doors.location import checkpoint_location
    from holdfast.doors.talk import address

    return address(driver_of(os.getpid()), checkpoint_location(options))
