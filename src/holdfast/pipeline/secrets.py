"""`${NAME}` and `${file:/run/secrets/name}` in a job file; what they stand for is kept out of all that is shown."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.pipeline.document import Document, JobError, Place

_REFERENCE = re.compile(r"\$(\$)?\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HIDDEN = "***"
#: What these hold is an address or a name, which errors and status must show; all else that is filled in is a secret.
_PLAIN = frozenset(
    ("name", "checkpoint_location", "path", "bootstrap_servers", "topics", "topic", "pattern", "group_id", "table",
     "contact_points", "keyspace", "port", "local_dc")
)  # fmt: skip


class Secrets:
    """What references were replaced by. Its `repr` shows none of it."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = {value for value in values if value.strip()}
        self._pattern: re.Pattern[str] | None = None

    def add(self, value: str) -> None:
        """Never show this again."""
        if value.strip():
            self._values.add(value)
            self._pattern = None

    def hide(self, text: str) -> str:
        """The text without any of them."""
        if not self._values:
            return text
        if self._pattern is None:
            # The longest first: one may be part of another. A short one only as a word of its own: else a password `a`
            # would leave nothing of a sentence, and tell itself by what is missing.
            ordered = sorted(self._values, key=len, reverse=True)
            words = [re.escape(v) if len(v) > 5 else rf"(?<!\w){re.escape(v)}(?!\w)" for v in ordered]
            self._pattern = re.compile("|".join(words))
        return self._pattern.sub(HIDDEN, text)

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"


class HidingFormatter(logging.Formatter):
    """Formats as another formatter does, and hides secrets in the result, tracebacks included."""

    def __init__(self, inner: logging.Formatter, secrets: Secrets) -> None:
        super().__init__()
        self._inner, self._secrets = inner, secrets

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        return self._secrets.hide(self._inner.format(record))


def fill_in(document: Document, environment: Mapping[str, str] = os.environ) -> tuple[dict[str, Any], Secrets]:
    """The data with every reference replaced, and what must not be shown."""
    secrets = Secrets()

    def walk(value: Any, place: Place) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, (*place, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*place, number)) for number, item in enumerate(value)]
        if isinstance(value, str) and "${" in value:
            return _REFERENCE.sub(lambda match: _substitute(match, document, place, environment, secrets), value)
        return value

    filled = walk(document.data, ())
    assert isinstance(filled, dict)
    return filled, secrets


def _substitute(
    match: re.Match[str], document: Document, place: Place, environment: Mapping[str, str], secrets: Secrets
) -> str:
    escaped, inner = match.groups()
    if escaped:
        return "${" + inner + "}"
    if inner.startswith("file:"):
        value = _from_file(inner.removeprefix("file:"), document, place)
    else:
        name, has_default, default = inner.partition(":-")
        if not _NAME.fullmatch(name):
            raise document.error(
                place,
                f"${{{inner}}} must be ${{NAME}}, ${{NAME:-default}} or ${{file:/path}}; $${{ stands for a plain ${{",
            )
        if name in environment:
            value = environment[name]
        elif has_default:
            return default  # it stands in the file for all to read
        else:
            raise document.error(place, f"the environment variable {name} is not set; ${{{name}:-...}} gives a default")
    if inner.startswith("file:") or not _PLAIN & set(map(str, place)):
        secrets.add(value)
    return value


def _from_file(name: str, document: Document, place: Place) -> str:
    path = Path(name)
    if not path.is_absolute():
        path = Path(document.path).resolve().parent / path
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        problem: JobError = document.error(place, f"the file {name} cannot be read: {error}")
        raise problem from error
