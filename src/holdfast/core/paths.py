"""Paths as people give them: text, or a `pathlib.Path`."""

from __future__ import annotations

import os
import re

from holdfast.errors import ConfigError

#: What an option that names a file, a folder or a URL takes.
AnyPath = str | os.PathLike[str]
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def path_text(option: str, value: object, kind: str = "a path") -> str:
    """The path as text; ConfigError for anything that is no path.

    A URL is refused as a Path object: that drops one of its slashes, and `s3:/bucket` is a folder of this machine.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ConfigError(f"{option} must be {kind}, not {value!r}")
    if not isinstance(value, str) and _SCHEME.match(text):
        raise ConfigError(
            f"{option}: {text!r} was a URL and lost a slash as a Path object: give it as text, for instance "
            f"{text.replace(':/', '://', 1)!r}"
        )
    return text
