"""What an option may be: said once, in its type, for the constructor that checks it, job files' schema and people.

An option is a parameter: its name, default and type are those of the signature, and `Annotated[int, whole(1)]` is a
type that says more. `checked` makes the constructor refuse what is not of the type, with the option's name and what is
allowed. What one option means to another stays in the constructor.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.core.units import A_DURATION, A_SIZE, parse_duration, parse_size
from holdfast.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Rule:
    """What values are good ones, and how an error says that."""

    says: str
    good: Callable[[Any], bool]
    #: for the schema of job files
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    #: what is wrong is not quoted
    secret: bool = False


def one_of(*choices: str) -> Rule:
    """One of a few words."""
    says = f"one of {', '.join(choices)}"
    return Rule(says, lambda value: isinstance(value, str) and value in choices, choices)


def whole(least: int, most: int | None = None, says: str | None = None) -> Rule:
    """A whole number in some bounds."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    return Rule(
        says or f"a whole number {bounds}",
        lambda value: _is_int(value) and value >= least and (most is None or value <= most),
        least=least,
        most=most,
    )


def number(says: str, good: Callable[[float], bool]) -> Rule:
    """A number that is good."""
    return Rule(says, lambda value: isinstance(value, int | float) and not isinstance(value, bool) and good(value))


def text(says: str) -> Rule:
    """Text that says something."""
    return Rule(says, lambda value: isinstance(value, str) and bool(value.strip()))


def made(says: str, kind: type) -> Rule:
    """An object of a class, with how to make one."""
    return Rule(says, lambda value: isinstance(value, kind))


SECRET = Rule("text", lambda value: isinstance(value, str), secret=True)
SECRETS = Rule("a dict", lambda value: isinstance(value, Mapping), secret=True)
SECONDS = number("a number of seconds above 0", lambda value: value > 0)
#: types that several constructors have
Columns = Annotated[Sequence[str], Rule("a list of columns", lambda value: fits(Sequence[str], value))]
Condition = Annotated[str, text("a condition in Spark SQL such as \"op = 'd'\"")]
Limit = Annotated[int, whole(1)] | None


def _parsed(parse: Callable[[str, object], object]) -> Callable[[Any], bool]:
    def good(value: Any) -> bool:
        try:
            return parse("", value) is not None
        except ConfigError:
            return False

    return good


Duration = Annotated[str | float | timedelta, Rule(A_DURATION, _parsed(parse_duration))]
Size = Annotated[str | int, Rule(A_SIZE, _parsed(parse_size))]


def checked(make: Callable[P, R]) -> Callable[P, R]:
    """A constructor or function that refuses, before anything is done, arguments that are not of their type."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return make(*args, **kwargs)  # whose error names the constructor
        kinds = _kinds(make)
        for name, value in given.items():
            if name in kinds:
                check(name, kinds[name], value)
        return make(*args, **kwargs)

    return call


def check_fields(made: Any, within: str = "") -> None:
    """The same for a dataclass, in its `__post_init__`; `within`: the option that it is the value of."""
    makes: Callable[..., Any] = type(made)
    for name, kind in _kinds(makes).items():
        check(f"{within}.{name}" if within else name, kind, getattr(made, name))


@functools.cache
def _kinds(make: Any) -> dict[str, Any]:
    return get_type_hints(make, include_extras=True)


def check(option: str, kind: Any, value: object) -> None:
    """Raise unless the value is of the type."""
    if fits(kind, value):
        return
    several = [one for one in _several(kind) if one is not type(None)]
    if isinstance(value, str) and fits(kind, [value]):
        raise ConfigError(f"{option} must be {_says_each(several)}: {option}=[{value!r}]")
    secret = any(rule.secret for one in several if (rule := rule_of(one)) is not None)
    # What stands in the place of an object may hold a password: an address instead of a committer.
    hidden = secret or any(isinstance(one, type) and one not in (str, int, float, bool, type(None)) for one in several)
    raise ConfigError(f"{option} must be {allowed(kind)}, not {type(value).__name__ if hidden else repr(value)}")


def allowed(kind: Any) -> str:
    """What values are of the type, in words: for errors and for tables."""
    several = [one for one in _several(kind) if one is not type(None)]
    return _says_each(several) + (", or None" if len(several) < len(_several(kind)) else "")


def fits(kind: Any, value: object) -> bool:
    """Whether the value is of the type; what is no type that we know takes anything."""
    rule, origin = rule_of(kind), get_origin(kind)
    if rule is not None:
        return rule.good(value)
    if origin in (Union, types.UnionType):
        return any(fits(one, value) for one in get_args(kind))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return _is_int(value)
    if origin is not None and isinstance(origin, type):
        if not issubclass(origin, Sequence):
            return isinstance(value, origin)
        return isinstance(value, origin) and not isinstance(value, str | bytes) and _all_fit(get_args(kind)[0], value)
    return isinstance(value, kind) if isinstance(kind, type) and kind is not Any else True


def rule_of(kind: Any) -> Rule | None:
    """What the type says beyond itself."""
    if get_origin(kind) is not Annotated:
        return None
    return next((extra for extra in get_args(kind)[1:] if isinstance(extra, Rule)), None)


def _several(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _all_fit(kind: Any, values: Sequence[Any]) -> bool:
    return all(fits(kind, value) for value in values)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text", Any: "anything"}


def _says_each(several: Sequence[Any]) -> str:
    return " or ".join(dict.fromkeys(map(_says, several)))


def _says(kind: Any) -> str:
    rule, origin = rule_of(kind), get_origin(kind)
    if rule is not None:
        return rule.says
    if origin in (Union, types.UnionType):
        return allowed(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if origin is Callable:
        return "a function"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a dict"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list of {_says(get_args(kind)[0])}"
    if origin is os.PathLike or kind is os.PathLike:
        return "a path"
    return f"a {getattr(kind, '__name__', kind)}"
