"""Options of job files, made from the constructors they are handed to: names, types and defaults cannot drift apart."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import timedelta
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from holdfast.core.options import allowed, rule_of
from holdfast.pipeline.help import HELP, plain_text

#: What YAML cannot hold, or holds in another form that the constructor takes as well.
_LEFT_OUT: tuple[Any, ...] = (timedelta, Path, PathLike)
REQUIRED = inspect.Parameter.empty


class Options(BaseModel):
    """The options of one object; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    #: what is made of them
    target: ClassVar[Callable[..., Any]]

    def build(self, **more: Any) -> Any:
        """The object, with what was given and its own defaults for the rest."""
        return type(self).target(**self.given(), **more)

    def given(self) -> dict[str, Any]:
        """What the file says, by the constructor's names."""
        fields = type(self).model_fields
        return {fields[name].alias or name: _built(getattr(self, name)) for name in self.model_fields_set}

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Nothing: options may hold secrets."""
        return ()


def _built(value: Any) -> Any:
    if isinstance(value, Options):
        return value.build()
    if isinstance(value, list):
        return [_built(item) for item in value]
    return value


@dataclass(frozen=True)
class Option:
    """One option, as its constructor has it."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def takes(self) -> str:
        """What it may be, as its constructor checks it."""
        return allowed(self.type)

    @property
    def shown(self) -> str:
        """Its default, as one would write it; nothing for what has to be given."""
        if self.default is REQUIRED:
            return ""
        if isinstance(self.default, int) and self.default == 10 * 1024**3:
            return "10 GiB"
        if callable(self.default):
            return ""  # a function that does nothing
        return f'"{self.default}"' if isinstance(self.default, str) else repr(self.default)


def options_of(target: Callable[..., Any], leave_out: Collection[str] = ()) -> list[Option]:
    """The options of a class or function, in the order of its signature."""
    call = target.__init__ if inspect.isclass(target) else target
    hints = get_type_hints(call, include_extras=True)
    about = HELP.get(target.__name__, {})
    return [
        Option(p.name, hints.get(p.name, Any), p.default, about.get(p.name, ""))
        for p in inspect.signature(target).parameters.values()
        if p.name not in leave_out and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


@cache
def model_of(target: Callable[..., Any], leave_out: tuple[str, ...] = (), name: str | None = None) -> type[Options]:
    """A model with the options of a class or function."""
    fields = dict(field_of(option) for option in options_of(target, leave_out))
    made = create_model(name or target.__name__, __base__=Options, __doc__=_first_paragraph(target), **fields)
    made.target = target
    return made


def field_of(option: Option) -> tuple[str, Any]:
    """Name and definition of a field; one that would hide a method of pydantic's gets an alias."""
    hides = hasattr(BaseModel, option.name)
    default = ... if option.default is REQUIRED else _default(option.default)
    made = Field(default, alias=option.name if hides else None, description=plain_text(option.help) or None)
    return f"{option.name}_" if hides else option.name, (_plain(option.type), made)


def _first_paragraph(target: Any) -> str:
    return (inspect.getdoc(target) or "").partition("\n\n")[0]


def guarantee(target: Any) -> str:
    """The first sentence of a sink's docstring says what it promises."""
    return " ".join(_first_paragraph(target).split())


def _default(value: Any) -> Any:
    """Only what the schema can show; what is not given is left to the constructor in any case."""
    return value if isinstance(value, str | int | float | bool | type(None)) else None


def _plain(kind: Any) -> Any:
    """A type as YAML can hold it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        rule, plain = rule_of(kind), _plain(inner[0])
        if rule is None or not (rule.choices or rule.least is not None):
            return plain  # the constructor says it better
        return Literal[rule.choices] if rule.choices else Annotated[plain, Field(ge=rule.least, le=rule.most)]
    if origin in (Union, types.UnionType):
        kept = [_plain(one) for one in inner if (get_origin(one) or one) not in _LEFT_OUT]
        return Union[tuple(kept)]  # noqa: UP007  made of a tuple
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[tuple(_plain(one) for one in inner)]  # type: ignore[misc]
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        return list[_plain(inner[0])]  # type: ignore[misc]
    if is_dataclass(kind) and isinstance(kind, type):
        return model_of(kind)
    return kind
