"""`holdfast transactions`: what a pipeline's Kafka sinks have open, and ending it by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from holdfast.checkpoint import journal
from holdfast.cli.confirm import YesOption, confirm
from holdfast.cli.output import BROKEN, OK, JsonOption, LocationArgument, Output, reporting
from holdfast.cli.transactions_show import details, document_of, list_of
from holdfast.connectors.kafka.sink import ending
from holdfast.errors import CommitError, ConfigError

if TYPE_CHECKING:
    from holdfast.connectors.kafka.sink.inspect import PipelineTransactions, Seen

IdArgument = Annotated[str, typer.Argument(help="A transactional id, as `list` shows it.", metavar="ID")]
ServersOption = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help="host:port[,host:port...]; default: what the sinks recorded."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="A properties file with settings of librdkafka, such as security.protocol."),
]

app = typer.Typer(
    help="What a pipeline's Kafka sinks have open, and ending it by hand.",
    epilog="Example: holdfast transactions list /data/checkpoints/totals",
    no_args_is_help=True,
)


def _command(name: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return app.command(name, epilog=f"Example: holdfast transactions {name} /data/checkpoints/totals{example}")


@_command("list", "")
def show_all(
    location: LocationArgument, servers: ServersOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """List the open transactions of a pipeline: whose, decided or not, how old, what they hold back.

    Also what is decided and lost, with exit code 1. Works while the query runs and when it is dead.
    """
    with reporting(json=json) as out, _pipeline(location, servers, config) as found:
        seen = found.open()
        lost, blocked = found.lost(seen), found.blocked(seen)
        document = {
            "location": location,
            "pipeline": found.pipeline,
            "servers": found.servers,
            "transactions": [document_of(s, blocked) for s in seen],
            "lost": [document_of(s, {}) for s in lost],
        }
        out.result(document, lambda: list_of(location, seen, lost, blocked))
        out.exit(BROKEN if lost else OK)


@_command("describe", " ID")
def describe(
    location: LocationArgument,
    transactional_id: IdArgument,
    servers: ServersOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show one transaction with its partitions and the offsets at which read-committed consumers wait.

    Exit code 1 when it is decided and lost.
    """
    with reporting(json=json) as out, _pipeline(location, servers, config) as found:
        seen = found.one(transactional_id)
        blocked = found.blocked([seen])
        out.result({"location": location, **document_of(seen, blocked)}, lambda: details(location, seen, blocked))
        out.exit(BROKEN if seen.verdict in ("lost", "too old to tell") else OK)


@_command("abort", " ID")
def abort(
    location: LocationArgument,
    transactional_id: IdArgument,
    servers: ServersOption = None,
    config: ConfigOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Abort an open transaction that no decided checkpoint names; one that is decided is refused.

    What is not open needs no abort: exit code 0.
    """
    with reporting(json=json) as out, _pipeline(location, servers, config) as found:
        seen = found.one(transactional_id)
        if seen.verdict == "not open":
            _done(out, location, seen, "not open")
        ending.refuse_abort(location, seen)
        if not confirm(ending.abort_means(found, seen), yes=yes):
            out.error("not confirmed: nothing was changed")
            out.exit(BROKEN)
        outcome = ending.abort(found, seen)
        if outcome == ending.ABORTED:
            journal.note(location, journal.ABORT, {"transactional_id": transactional_id, "sink": seen.sink})
        _done(out, location, seen, outcome)


@_command("commit", " ID")
def commit(
    location: LocationArgument,
    transactional_id: IdArgument,
    servers: ServersOption = None,
    config: ConfigOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Commit an open transaction that a decided checkpoint names; any other is refused.

    The query does so itself at its next start; this is for when it cannot start soon. What is committed already needs
    nothing: exit code 0.
    """
    with reporting(json=json) as out, _pipeline(location, servers, config) as found:
        seen = found.one(transactional_id)
        if seen.verdict == "committed":
            _done(out, location, seen, "already committed")
        if seen.verdict != "decided":
            raise CommitError(ending.refusal(location, seen))
        rows = f"{seen.rows:,} rows of checkpoint {seen.checkpoint_id} become visible in sink {seen.sink!r}"
        if not confirm(rows, yes=yes):
            out.error("not confirmed: nothing was changed")
            out.exit(BROKEN)
        if not found.end(seen, commit=True):
            found.read()
            again = found.one(transactional_id)
            if again.verdict != "committed":
                raise CommitError(ending.refusal(location, again))
            _done(out, location, seen, "already committed")
        journal.note(location, journal.COMMIT, {"transactional_id": transactional_id, "sink": seen.sink})
        _done(out, location, seen, "committed")


def _pipeline(location: str, servers: str | None, config: Path | None) -> PipelineTransactions:
    from holdfast.connectors.kafka.client.settings import check_servers
    from holdfast.connectors.kafka.sink.inspect import PipelineTransactions  # loads pyarrow

    settings = {} if config is None else read_properties(config)
    servers = servers or settings.pop("bootstrap.servers", None)
    return PipelineTransactions(
        location, None if servers is None else check_servers(servers), {"log_level": 0, **settings}
    )


def read_properties(path: Path) -> dict[str, str]:
    """`key=value` lines; an error names the line, never its text: there may be a password in it."""
    found = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--config {path}: line {number} is not key=value")
        found[key.strip()] = value.strip()
    return found


def _done(out: Output, location: str, seen: Seen, outcome: str) -> None:
    document = {"location": location, **document_of(seen, {}), "outcome": outcome}
    out.result(document, lambda: Text(f"{seen.transactional_id}: {outcome}"))
    out.exit(OK)
