"""What `holdfast resolve` keeps: a list of reports, their rows, and the order to send these again."""

from __future__ import annotations

import base64
import json as jsons
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.again import order_again
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.reports import kept_files, read_rows, reported
from holdfast.checkpoint.status import Status
from holdfast.checkpoint.storage import open_storage
from holdfast.cli.output import Output, moment
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


def list_reports(out: Output, found: Status) -> None:
    """Every order that was given, with what is kept of it."""
    reports = [{**r, "rows_kept": rows_kept(r)} for r in found.resolutions]
    out.result({"location": found.location, "reports": reports}, lambda: _table(reports))


def rows_kept(report: Mapping[str, Any]) -> int:
    """How many rows its files hold."""
    return sum(int(file["rows"]) for file in kept_files(report) if "file" in file)


def _table(reports: list[dict[str, Any]]) -> RenderableType:
    if not reports:
        return Text("there are no reports")
    table = Table("checkpoint", "sink", "order", "by", "when", "rows", "rows kept", "carried out", "not kept")
    for r in reports:
        problems = [str(f["problem"]) for f in kept_files(r) if "problem" in f]
        table.add_row(
            str(r["checkpoint_id"]),
            Text(str(r["sink"])),
            r["how"],
            Text(str(r["by"])),
            moment(r["at"]),
            f"{r['rows']:,}",
            f"{r['rows_kept']:,}",
            "yes" if r.get("carried_out", True) else "by the next start",
            Text("; ".join(filter(None, [r.get("not_kept"), *problems]))),
        )
    return table


def show_rows(out: Output, location: str, checkpoint_id: int, sink: str | None, target: Path | None) -> None:
    """The rows of a report as JSON lines, or in an Arrow file if that is what the target's name says."""
    storage = open_storage(log_location(location))
    report = reported(storage, checkpoint_id, sink)
    if not rows_kept(report):
        raise ConfigError(f"the report about checkpoint {checkpoint_id} of sink {report['sink']!r} keeps no rows")
    batches = read_rows(storage, report)
    if target is None:
        for line in _lines(batches):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        return
    rows = _to_arrow(batches, target) if target.suffix == ".arrow" else _to_lines(batches, target)
    document = {"location": location, "checkpoint_id": checkpoint_id, "sink": report["sink"], "rows": rows}
    out.result({**document, "file": str(target)}, lambda: Text(f"{rows:,} rows are in {target}"))


def _to_arrow(batches: Iterator[pa.RecordBatch], target: Path) -> int:
    """One file for each schema would be needed if they differed: say so instead of mixing them."""
    import pyarrow as pa

    first, rows = next(batches), 0
    with pa.OSFile(str(target), "wb") as file, pa.ipc.new_stream(file, first.schema) as stream:
        for batch in [first, *batches]:
            if not batch.schema.equals(first.schema):
                raise ConfigError(
                    f"the rows have more than one schema: choose a name that ends in .jsonl, not {target}"
                )
            stream.write_batch(batch)
            rows += batch.num_rows
    return rows


def _to_lines(batches: Iterable[pa.RecordBatch], target: Path) -> int:
    rows = 0
    with target.open("w", encoding="utf-8") as file:
        for line in _lines(batches):
            file.write(f"{line}\n")
            rows += 1
    return rows


def _lines(batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    for batch in batches:
        columns = [_values(column) for column in batch.columns]
        for values in zip(*columns, strict=True):
            row = dict(zip(batch.schema.names, values, strict=True))
            yield jsons.dumps(row, default=_plain, ensure_ascii=False)


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; text that is not UTF-8, which may be why its rows are here, is shown escaped."""
    import pyarrow as pa

    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise ConfigError(
                f"a column of type {column.type} holds text that is not UTF-8, which JSON cannot show: choose a file "
                "name that ends in .arrow"
            ) from None
        binary = pa.binary() if pa.types.is_string(column.type) else pa.large_binary()
        raw = column.cast(binary).to_pylist()
        return [None if value is None else value.decode("utf-8", errors="backslashreplace") for value in raw]


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def send_again(out: Output, location: str, checkpoint_id: int, sink: str | None, who: Mapping[str, Any]) -> None:
    """Order that the kept rows are sent again."""
    storage = open_storage(log_location(location))
    order = order_again(storage, reported(storage, checkpoint_id, sink), who)
    text = f"{order['rows']:,} rows are sent to sink {order['sink']!r} again, with the next checkpoint of the pipeline"
    out.result({"location": location, "order": order}, lambda: Text(f"{text}. Start the query, if it does not run"))
