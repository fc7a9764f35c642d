"""A job file as data, with the line and column of everything in it, so that an error can point at its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import ConfigError

#: The way to a value: keys of mappings and numbers of list items.
Place = tuple[str | int, ...]


class JobError(ConfigError):
    """A job file is wrong; each line of the message names file, line, column, what is wrong and what would be right."""

    each_line_alone = True


@dataclass(frozen=True)
class Document:
    """The data of a job file as it stands there: nothing is filled in for `${...}` yet."""

    path: str
    data: dict[str, Any]
    #: line and column, from 1, of each value and of each key
    values: Mapping[Place, tuple[int, int]] = field(default_factory=dict)
    keys: Mapping[Place, tuple[int, int]] = field(default_factory=dict)

    def where(self, place: Place, *, key: bool = False) -> str:
        """`file:line:column` of a place, or of the nearest one around it that is in the file."""
        for length in range(len(place), -1, -1):
            near = place[:length]
            found = (self.keys if key else self.values).get(near) or self.keys.get(near) or self.values.get(near)
            if found is not None:
                return f"{self.path}:{found[0]}:{found[1]}"
        return self.path

    def error(self, place: Place, problem: str, *, key: bool = False) -> JobError:
        """An error that points at a place."""
        return JobError(f"{self.where(place, key=key)}: {dotted(place)}{problem}")


def dotted(place: Place) -> str:
    """`sinks.0.kafka: `, or nothing for the file itself."""
    return f"{'.'.join(map(str, place))}: " if place else ""


def nearest(word: object, allowed: Sequence[str]) -> str:
    """A hint for a key that does not exist."""
    close = get_close_matches(str(word), allowed, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(sorted(allowed))}"


def read_document(path: Path, settings: Sequence[str] = ()) -> Document:
    """Read a job file; `settings` are `key.key=value` and win over what it says."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: the job file cannot be read: {error}") from error
    values: dict[Place, tuple[int, int]] = {}
    keys: dict[Place, tuple[int, int]] = {}
    data: Any = None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            _no_key_twice(node, str(path))
            data = yaml.safe_load(text)
            for place, kind, mark in _marks(node, ()):
                (keys if kind == "key" else values)[place] = (mark.line + 1, mark.column + 1)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise JobError(f"{path}{where}: this is not YAML: {problem}") from error
    if not isinstance(data, dict):
        raise JobError(f"{path}: a job file is a mapping with name, checkpoint_location, source and sinks")
    for setting in settings:
        _set(data, setting)
    return Document(str(path), data, values, keys)


def _marks(node: yaml.Node, place: Place) -> Iterator[tuple[Place, str, yaml.Mark]]:
    yield place, "value", node.start_mark
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, _key(key))
            yield inner, "key", key.start_mark
            yield from _marks(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _marks(value, (*place, number))


def _key(node: yaml.Node) -> str | int:
    value = node.value
    return int(value) if node.tag == "tag:yaml.org,2002:int" and str(value).isdigit() else str(value)


def _no_key_twice(node: yaml.Node, path: str) -> None:
    """YAML's own reader takes the last of two equal keys without a word."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if str(key.value) in seen:
                mark = key.start_mark
                raise JobError(f"{path}:{mark.line + 1}:{mark.column + 1}: {key.value!r} stands here a second time")
            seen.add(str(key.value))
            _no_key_twice(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _no_key_twice(value, path)


def _set(data: dict[str, Any], setting: str) -> None:
    """`trigger.available_now=true`, `sinks.0.kafka.topic=other`; the value is read as YAML."""
    name, equals, text = setting.partition("=")
    if not equals or not all(name.split(".")):
        raise JobError(f"--set {setting}: it must be key=value, with dots between keys: trigger.once=true")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise JobError(f"--set {setting}: the value is not YAML: {error}") from error
    *way, last = name.split(".")
    here: Any = data
    for number, word in enumerate(way):
        if isinstance(here, list):
            here = here[_index(here, word, setting)]
        elif isinstance(here, dict):
            if not isinstance(here.get(word), dict | list):
                here[word] = {}
            here = here[word]
        else:
            raise JobError(f"--set {setting}: {'.'.join(way[:number])} holds no keys")
    if isinstance(here, list):
        here[_index(here, last, setting)] = value
    elif isinstance(here, dict):
        here[last] = value
    else:
        raise JobError(f"--set {setting}: {'.'.join(way)} holds no keys")


def _index(items: list[Any], word: str, setting: str) -> int:
    if not word.isdigit() or int(word) >= len(items):
        raise JobError(f"--set {setting}: {word!r} must be a number below {len(items)}, as this is a list")
    return int(word)
