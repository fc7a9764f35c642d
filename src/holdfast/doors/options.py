"""The options of `format("holdfast")`, read with the tables of job files.

Spark hands them over as text, with names in lower case: `bootstrap_servers` and `bootstrapServers` are the same, and
`config.linger.ms` is an entry of the mapping `config`.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel

from holdfast.checkpoint.history import engine_position, log_location
from holdfast.checkpoint.lineage import pipeline_at
from holdfast.checkpoint.log import HISTORY_RETAIN
from holdfast.checkpoint.storage import open_storage
from holdfast.core.naming import check_name
from holdfast.core.units import parse_duration
from holdfast.doors.location import checkpoint_location
from holdfast.errors import ConfigError
from holdfast.pipeline.build import Builder
from holdfast.pipeline.document import Document, nearest, read_document
from holdfast.pipeline.model import SINKS, STREAM_OPTIONS
from holdfast.pipeline.options import Options
from holdfast.pipeline.problems import check_document
from holdfast.sinks.dead_letters import DeadLetters
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.connect import HANDED, PLACE, TAKE_OVER, plain_sinks

#: Spark's own, which say nothing about where rows go.
_SPARKS = ("queryname",)
#: What Spark's declarative pipelines call the folder of checkpoint locations; below it each full refresh has a number.
_PIPELINES = "_checkpoints"


@dataclass(frozen=True)
class Plan:
    """What a query through this door delivers, and how."""

    name: str
    location: str
    sinks: list[TwoPhaseCommitSink]
    dead_letters: DeadLetters | None
    history_retain: int
    #: delivery, take_over, retry and drain_timeout, as the coordinator wants them
    settings: dict[str, Any]

    def __repr__(self) -> str:
        return f"Plan({self.name!r}, {self.location!r})"


def read_options(options: Mapping[str, str]) -> Plan:
    """Check all of them; ConfigError says which one is wrong, and what is allowed."""
    given = {key.lower(): value for key, value in options.items() if key.lower() not in _SPARKS}
    location = checkpoint_location(given)
    given.pop("checkpointlocation")
    take_over = _boolean(TAKE_OVER, given.pop(TAKE_OVER, "false"))
    handed = given.pop(HANDED, None)
    ways = [way for way in ("sink", "sinks", "job") if way in given]
    if len(ways) + (handed is not None) != 1:
        said = f", not {' and '.join(ways)}" if ways else ""
        raise ConfigError(
            f"{PLACE}: give one of the options sink ({', '.join(SINKS)}), sinks (a JSON list, as in a job file) and "
            f"job (the path of a job file){said}"
        )
    plan = _handed(handed, given, location) if handed is not None else _described(given, location)
    plan.settings["take_over"] = take_over or _full_refresh(plan.name, location)
    return plan


def _described(given: dict[str, str], location: str) -> Plan:
    """From the options of one sink, a list, or a job file."""
    job = given.pop("job", None)
    stream = _stream_options(given)
    if job is not None:
        if given:
            raise ConfigError(f"{PLACE}: with a job file, option {sorted(given)[0]!r} has no place: write it there")
        document = read_document(Path(job))
        document.data.update({**stream, "checkpoint_location": location})
    else:
        stream.setdefault("name", "")
        # A job file has a source too; here the query is it.
        data = {**stream, "checkpoint_location": location, "source": {"rate": {}}, "sinks": _sinks(given)}
        document = Document(PLACE, data)
        check_name("option name", str(data["name"]))
    described = check_document(document)
    builder, found = Builder(described, keep=False), described.job
    dead_letters = builder.dead_letters()
    retry = getattr(found, "retry", None)
    drain = parse_duration("drain_timeout", getattr(found, "drain_timeout"))  # noqa: B009  made from write_stream
    settings = {
        "delivery": getattr(found, "delivery"),  # noqa: B009
        "retry": retry.build() if isinstance(retry, Options) else retry,
        "drain_timeout": 60.0 if drain is None else drain,
    }
    sinks = plain_sinks(builder.sinks(), dead_letters)
    retain = getattr(found, "history_retain", HISTORY_RETAIN)
    return Plan(str(getattr(found, "name")), location, sinks, dead_letters, retain, settings)  # noqa: B009


def _handed(text: str, given: Mapping[str, str], location: str) -> Plan:
    """From hf.write_stream on a frame of Spark Connect, which has made and checked the sinks itself."""
    made = pickle.loads(base64.b64decode(text))  # noqa: S301  as every function that Spark Connect takes from a client
    dead_letters = made["dead_letters"]
    sinks = plain_sinks(made["sinks"], dead_letters)
    return Plan(given["name"], location, sinks, dead_letters, made["history_retain"], dict(made["settings"]))


def _stream_options(given: dict[str, str]) -> dict[str, Any]:
    """Those of write_stream, taken out."""
    return {
        name: _value(given.pop(_folded(name)), None)
        for name in STREAM_OPTIONS
        if _folded(name) in given and name != "checkpoint_location"
    }


def _sinks(given: dict[str, str]) -> list[Any]:
    kind = given.pop("sink", None)
    if kind is not None:
        if kind not in SINKS:
            raise ConfigError(f"{PLACE}: there is no sink {kind!r}; {nearest(kind, list(SINKS))}")
        return [{kind: _own(SINKS[kind], given, f"sink {kind}")}]
    text = given.pop("sinks")
    if given:
        raise ConfigError(f"{PLACE}: with sinks, option {sorted(given)[0]!r} has no place: write it into the list")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{PLACE}: option sinks is not a JSON list: {error}") from None
    if not isinstance(found, list):
        raise ConfigError(f'{PLACE}: option sinks must be a JSON list such as [{{"sqlite": {{"path": ...}}}}]')
    return found


def _own(model: type[BaseModel], given: Mapping[str, str], who: str) -> dict[str, Any]:
    """Options by the names of the constructor."""
    fields = {info.alias or name: info.annotation for name, info in model.model_fields.items()}
    names = {_folded(name): (name, annotation) for name, annotation in fields.items()}
    found: dict[str, Any] = {}
    inside: dict[str, dict[str, str]] = {}
    for key, text in given.items():
        first, dot, rest = key.partition(".")
        if _folded(first) not in names:
            hint = nearest(key, [name for name, _ in names.values()])
            raise ConfigError(f"{PLACE}: {who} has no option {key!r}; {hint}")
        name, annotation = names[_folded(first)]
        if dot:
            inside.setdefault(name, {})[rest] = text
        else:
            found[name] = _value(text, annotation)
    for name, entries in inside.items():
        kinds = [kind for kind in _kinds(fields[name]) if isinstance(kind, type)]
        models = [kind for kind in kinds if issubclass(kind, BaseModel)]
        found[name] = _own(models[0], entries, f"{who}, {name}") if models else dict(entries)
    return found


def _value(text: str, annotation: Any) -> Any:
    """Text as a value: JSON where it looks like it; a list of words where only a list is allowed."""
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    kinds = _kinds(annotation)
    if str not in kinds and any(get_origin(kind) is list for kind in kinds):
        return [word.strip() for word in text.split(",")]
    return text


def _kinds(annotation: Any) -> list[Any]:
    """The members of a union, or the one."""
    inner = get_args(annotation)
    return list(inner) if inner and get_origin(annotation) not in (list, dict) else [annotation]


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def _boolean(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{PLACE}: option {option} must be true or false, not {text!r}")
    return text.lower() == "true"


def _full_refresh(name: str, location: str) -> bool:
    """Whether a declarative pipeline was told to begin anew: its location has the next number, beside our old one.

    `spark-pipelines run --full-refresh` is the user's order to deliver everything again: a take-over (rule 10).
    """
    parent, _, number = location.rpartition("/")
    if f"/{_PIPELINES}/" not in location or not number.isdigit() or engine_position(location)[1] is not None:
        return False
    earlier = (f"{parent}/{n}" for n in range(int(number) - 1, -1, -1))
    return any(pipeline_at(open_storage(log_location(before))) == name for before in earlier)
