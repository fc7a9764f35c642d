"""Secrets out of what is shown. Records hold none by rule; this is for what a user or a sink of theirs put there."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"
_KEY = re.compile(
    r"pass(word|wd|phrase)?$|secret|token$|credential|api[._-]?key|private[._-]?key|access[._-]?key|jaas|"
    r"authorization|account[._-]?key|sas[._-]?(fixed[._-]?)?token|connection[._-]?string|ssl\.key",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^/\s:@]*):(?P<secret>[^/\s@]+)@")
_PAIR = re.compile(
    r"(?P<name>\b(?:[\w.-]*(?:password|passwd|passphrase|secret|credential|api[._-]?key|access[._-]?key|"
    r"account[._-]?key|sas[._-]?(?:fixed[._-]?)?token|sharedaccesssignature)[\w.-]*|token|authorization|sig)[\"']?\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)",
    re.IGNORECASE,
)
#: what holdfast itself calls a token or nonce is a name, and people need it
_NAMES = frozenset(("token",))


def hide_text(text: str) -> str:
    """The text without passwords of URLs and without values of names that look secret."""
    text = _USER_INFO.sub(lambda m: f"{m['scheme']}{m['user']}:{HIDDEN}@", text)
    return _PAIR.sub(lambda m: m[0] if m["name"].lower().startswith("token") else f"{m['name']}{HIDDEN}", text)


def hide(data: Any) -> Any:
    """The same for JSON data, where a key tells whether its value is secret."""
    if isinstance(data, dict):
        return {key: HIDDEN if _secret(key, value) else hide(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [hide(item) for item in data]
    return hide_text(data) if isinstance(data, str) else data


def _secret(key: Any, value: Any) -> bool:
    named = isinstance(key, str) and key not in _NAMES and _KEY.search(key) is not None
    return named and value is not None and not isinstance(value, bool)
