"""Names: pipelines, sinks, job and operator ids, and the token of one task attempt.

Every name at an endpoint is a token or is made from one (rule 2). Tokens parse back exactly: parts are joined by `-`
and a part's own characters are escaped, since pipeline names may hold dashes.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field

from holdfast.errors import ConfigError

_SAFE = frozenset((string.ascii_letters + string.digits + "_").encode())
_PREFIX = "hf1"
_LINEAGE = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
MAX_NAME = 100
#: Of the escaped form: with a lineage or a checkpoint id beside it, it must still fit a file name of 255 bytes.
MAX_ESCAPED = 220


def escape(text: str) -> str:
    """Letters, digits and `_` stay; every other byte becomes `.xx`. Safe in file names, SQL, Kafka ids, URLs."""
    return "".join(chr(b) if b in _SAFE else f".{b:02x}" for b in text.encode())


def unescape(text: str) -> str:
    """The inverse of `escape`; anything `escape` could not have made is refused."""
    try:
        raw = re.sub(rb"\.([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), text.encode("ascii"))
        result = raw.decode()
    except UnicodeError:
        raise ValueError(f"{text!r} is not an escaped name") from None
    if escape(result) != text:
        raise ValueError(f"{text!r} is not an escaped name")
    return result


def check_name(kind: str, name: object) -> str:
    """A pipeline or sink name: printable, 1 to 100 bytes, no blanks at its ends."""
    if not isinstance(name, str):
        raise ConfigError(f"{kind} must be a string, not {type(name).__name__}")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{kind} {name!r} is not valid Unicode text") from None
    if not 1 <= length <= MAX_NAME:
        raise ConfigError(f"{kind} must have 1 to {MAX_NAME} bytes, and {name[:40]!r} has {length}")
    if not name.isprintable() or name != name.strip():
        raise ConfigError(f"{kind} {name!r} may hold printable characters only and no blanks at its ends")
    if len(escape(name)) > MAX_ESCAPED:
        raise ConfigError(
            f"{kind} {name!r} is too long for a file name: there every byte but letters, digits and _ takes three, and "
            f"{MAX_ESCAPED} is the limit. Choose a shorter one"
        )
    return name


@dataclass(frozen=True)
class Task:
    """One attempt of one subtask of one checkpoint, for one sink.

    `attempt` is Spark's task attempt id: it differs for every attempt of every stage attempt, so a retried stage never
    meets a name of its predecessor.
    """

    pipeline: str
    sink: str
    lineage: str
    generation: int
    checkpoint_id: int
    subtask: int
    attempt: int
    #: When the checkpoint began, in milliseconds; not part of the token.
    timestamp: int = field(default=0, compare=False)
    #: Where the log is, for sinks that write there; not part of the token.
    location: str = field(default="", compare=False)
    #: Which repair of the checkpoint this is, 0 for none; not part of the token, in which the attempt tells all apart.
    repair: int = field(default=0, compare=False)
    #: A small number that no other attempt at this subtask has that can be alive beside it, in this generation: for
    #: endpoints that remember names (`holdfast.core.passes`). None: there is only `attempt`. Not part of the token.
    place: int | None = field(default=None, compare=False)

    @property
    def token(self) -> str:
        """A name-safe string of all of it, unique to this attempt; `parse_token` reads it back."""
        numbers = (self.generation, self.checkpoint_id, self.subtask, self.attempt)
        return "-".join((_PREFIX, escape(self.pipeline), escape(self.sink), self.lineage, *map(str, numbers)))


def parse_token(text: str) -> Task | None:
    """The task a token was made for, or None for any other text: then it is not ours to touch."""
    parts = text.split("-")
    if len(parts) != 8 or parts[0] != _PREFIX or not _LINEAGE.fullmatch(parts[3]):
        return None
    if not all(_NUMBER.fullmatch(p) for p in parts[4:]):
        return None
    try:
        pipeline, sink = unescape(parts[1]), unescape(parts[2])
    except ValueError:
        return None
    generation, checkpoint_id, subtask, attempt = map(int, parts[4:])
    return Task(pipeline, sink, parts[3], generation, checkpoint_id, subtask, attempt)


def job_id(pipeline: str, lineage: str) -> str:
    """What a committer knows a pipeline by: stable over restarts, other for another checkpoint location (rule 10)."""
    return f"{escape(pipeline)}-{lineage}"


def parse_job_id(text: str) -> tuple[str, str] | None:
    """(pipeline, lineage) of a job id, or None for any other text."""
    name, dash, lineage = text.partition("-")
    if not dash or not _LINEAGE.fullmatch(lineage):
        return None
    try:
        return unescape(name), lineage
    except ValueError:
        return None


def operator_id(sink: str) -> str:
    """What a committer knows a sink by."""
    return escape(sink)
