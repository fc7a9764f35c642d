"""`holdfast dashboard`: a web page over checkpoint locations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from holdfast.cli.output import JsonOption, reporting
from holdfast.cli.transactions import read_properties
from holdfast.core.units import parse_duration
from holdfast.dashboard import require_packages
from holdfast.errors import ConfigError

PathsArgument = Annotated[
    list[str],
    typer.Argument(help="Checkpoint locations, or a local folder that has some directly in it.", metavar="PATH..."),
]
HostOption = Annotated[str, typer.Option("--host", help="The address to listen at; others than this machine's too.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="A name under which it may be asked for. May be repeated."),
]
RefreshOption = Annotated[str, typer.Option("--refresh", help="How often the files are looked at: 1s, 30s.")]
ActionsOption = Annotated[
    bool,
    typer.Option(
        "--allow-actions", help="Let orders of `resolve`, savepoints and aborts of transactions be given from the page."
    ),
]
SavepointsOption = Annotated[
    str | None,
    typer.Option("--savepoints", metavar="FOLDER", help="The folder of savepoints: shown, and where new ones go."),
]
KafkaOption = Annotated[
    Path | None,
    typer.Option("--kafka-config", help="A properties file with settings of librdkafka, to ask brokers with."),
]


def dashboard(
    paths: PathsArgument,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8787,
    allow_host: AllowHostOption = None,
    refresh: RefreshOption = "1s",
    allow_actions: ActionsOption = False,
    kafka_config: KafkaOption = None,
    savepoints: SavepointsOption = None,
    json: JsonOption = False,
) -> None:
    """Show pipelines in the browser: is each healthy, how fast, what it owes, what went wrong, every checkpoint.

    Reads files only, so it works for queries that run, were stopped or have crashed. It listens on this machine alone
    unless --host says otherwise, and changes nothing unless --allow-actions does. Ctrl-C ends it.
    """
    with reporting(json=json) as out:
        require_packages()
        from holdfast.dashboard.places import Places
        from holdfast.dashboard.serve import address_of, listen, names_of, serve
        from holdfast.dashboard.web import Site

        every = parse_duration("--refresh", refresh)
        if not every or every < 0.1:
            raise ConfigError("--refresh must be at least 100ms")
        names = names_of(host, allow_host or ())
        kafka = {} if kafka_config is None else read_properties(kafka_config)
        places = Places(paths, savepoints=savepoints)
        site = Site(places, every=every, allow_actions=allow_actions, kafka=kafka)
        bound = listen(host, port)
        url, word = address_of(bound), None if site.actions is None else site.actions.word
        lines = [Text(f"{len(site.places)} pipelines at {url}  (Ctrl-C ends it)")]
        if word is not None:
            lines.append(Text(f"orders need the operator's word: {word}"))
        document = {"url": url, "pipelines": [place.location for place in site.places], "operator_word": word}
        serve(site, bound, names, lambda: out.result(document, lambda: Group(*lines)))
