"""Checks the data of a job file, and says what is wrong with it where it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from holdfast.pipeline.document import Document, JobError, Place, dotted, nearest, read_document
from holdfast.pipeline.model import Job, Step, job_model
from holdfast.pipeline.secrets import Secrets, fill_in


class Described:
    """A job file that was read and checked."""

    def __init__(self, document: Document, job: Job, secrets: Secrets) -> None:
        self.document, self.job, self.secrets = document, job, secrets

    def __repr__(self) -> str:
        return f"Described({self.document.path!r})"


def read_job(path: str | Path, settings: tuple[str, ...] = ()) -> Described:
    """Read and check a job file; JobError names every problem with its line and column."""
    return check_document(read_document(Path(path), settings))


def check_document(document: Document) -> Described:
    """Check the data of a job, wherever it was read."""
    data, secrets = fill_in(document)
    try:
        return Described(document, job_model().model_validate(data), secrets)
    except ValidationError as error:
        problems = dict.fromkeys(_sentence(document, problem) for problem in _kept(error))
        raise JobError(secrets.hide("\n".join(problems))) from None


def _kept(error: ValidationError) -> list[Any]:
    """Without what a value is not: of a word that could also have been a mapping, the words are what is told."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    told = {problem["loc"][:-1] for problem in found if problem["type"] == "literal_error"}
    return [p for p in found if not (p["type"] in ("model_type", "dict_type") and p["loc"][:-1] in told)]


def _sentence(document: Document, problem: Any) -> str:
    place = _place(document, tuple(problem["loc"]))
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        *around, key = place
        where = document.where(place, key=True)
        hint = nearest(key, _keys(tuple(around)))
        return f"{where}: {dotted(tuple(around))}there is no {key!r} here; {hint}"
    if problem["type"] == "missing":
        *around, key = place
        return f"{document.where(tuple(around))}: {dotted(tuple(around))}{key!r} is missing"
    given = _given(document, place)
    said = "" if given is None else f", not {given!r}"
    return f"{document.where(place)}: {dotted(place)}{message[:1].lower()}{message[1:]}{said}"


def _place(document: Document, loc: Place) -> Place:
    """The place in the file: pydantic also names the kinds it tried for a value."""
    place: Place = ()
    here: Any = document.data
    for word in loc:
        if (isinstance(here, dict) and word in here) or (isinstance(here, list) and word in range(len(here))):
            here, place = here[word], (*place, word)  # type: ignore[index]
        elif word == loc[-1] and isinstance(here, dict) and isinstance(word, str) and _is_key(word):
            place = (*place, word)  # a key that is missing
    return place


def _is_key(word: str) -> bool:
    return word.isidentifier() and word not in ("view", "sql")


def _given(document: Document, place: Place) -> Any:
    """The value as it stands in the file, so with `${...}` and not with what that stands for; None if it is large."""
    here: Any = document.data
    for word in place:
        try:
            here = here[word]
        except (KeyError, IndexError, TypeError):
            return None
    return here if isinstance(here, str | int | float | bool) else None


def _keys(around: Place) -> list[str]:
    """The keys that are allowed at a place."""
    kinds: list[Any] = [job_model()]
    for word in around:
        inner: list[Any] = []
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                for name, info in kind.model_fields.items():
                    if word in (name, info.alias):
                        inner += _models(info.annotation)
            elif isinstance(kind, tuple):
                inner += list(kind)
        kinds = inner
    found: list[str] = []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Step):
            found.append("watermark")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            found += [info.alias or name for name, info in kind.model_fields.items()]
    return found


def _models(annotation: Any) -> list[Any]:
    """The models a value may be of; those inside a list or mapping as a tuple, one step further in."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    found = [model for one in inner for model in _models(one)]
    return [tuple(found)] if origin in (list, dict) else found
