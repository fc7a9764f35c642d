"""`holdfast flush`: complete the files that wait for more rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.status import read_status
from holdfast.checkpoint.storage import open_storage
from holdfast.cli.confirm import refuse_running
from holdfast.cli.output import OK, JsonOption, LocationArgument, reporting
from holdfast.errors import RecordError

if TYPE_CHECKING:
    from holdfast.connectors.files.flush import Flushed

FenceOption = Annotated[
    bool, typer.Option("--fence", help="Also when a driver seems to run: it is stopped, and loses nothing.")
]

_BY_ITSELF = "and completes its files by itself, at the latest when it is stopped. Stop it, then flush"


def flush(location: LocationArgument, fence: FenceOption = False, json: JsonOption = False) -> None:
    """Complete the files of a stopped pipeline's file sinks, so that readers see every decided row.

    A query that ends by itself or is stopped does so anyway; after a crash this does it without a start. Rows that are
    not decided are left to Spark's replay.
    """
    from holdfast.connectors.files.flush import flush as complete  # loads pyarrow

    with reporting(json=json) as out:
        found = read_status(location)
        if found.damaged or found.pipeline is None or found.lineage is None:
            raise RecordError("; ".join(d.problem for d in found.damaged) or f"{location} has no lineage record")
        refuse_running(found, _BY_ITSELF, fence=fence)
        done = complete(open_storage(log_location(location)), found.pipeline, found.lineage)
        out.result({"location": location, "sinks": [asdict(row) for row in done]}, lambda: _table(done))
        out.exit(OK)


def _table(rows: Sequence[Flushed]) -> RenderableType:
    if not rows:
        return Text("nothing waits: every decided row is in a committed file")
    table = Table("sink", "path", "files", "rows")
    for row in rows:
        table.add_row(Text(row.sink), Text(row.path), f"{row.files:,}", f"{row.rows:,}")
    return table
