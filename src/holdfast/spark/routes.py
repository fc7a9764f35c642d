"""Routes as columns of the stream: predicates and expressions that Spark computes in the one pass.

They are added when the writer is made, so that a wrong one is an error there, and so that they are part of the plan
that rows are taken from. Each sink's selection then says in which columns its rows are.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.errors import ConfigError, first_line
from holdfast.sinks.deletes import DELETED
from holdfast.sinks.route import Route
from holdfast.sinks.selection import Selection
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.private import analyzed

_OURS = "__holdfast_{}"
_ATTRIBUTE = "AttributeReference"


@dataclass(frozen=True)
class Routed:
    """The stream with what its routes need, and each sink's way through it."""

    frame: DataFrame
    sinks: list[TwoPhaseCommitSink]
    selections: dict[str, Selection]


def routed(df: DataFrame, routes: Sequence[Route]) -> Routed:
    """Add to a stream the columns that its routes need; ConfigError, with the expression, for one that cannot be."""
    sinks = [route.sink for route in routes]
    if all(route == Route(route.sink) and not _asks(route.sink) for route in routes):
        return Routed(df, sinks, {})
    columns = _Columns(df)
    selections = {route.sink.name: _selection(columns, route) for route in routes}
    used = {place for selection in selections.values() for place in columns.used(selection)}
    kept = columns.droppable and len(used) < columns.count
    places = sorted(used) if kept else list(range(columns.count))
    frame = df.select(*(columns.of(place) for place in places)) if kept else df.select("*", *columns.added)
    moved = {name: columns.moved(selection, places) for name, selection in selections.items()}
    return Routed(_wanted(frame, list(moved.values())), sinks, moved)


def _wanted(frame: DataFrame, selections: Sequence[Selection]) -> DataFrame:
    """Without the rows that no route takes: they need not leave the JVM."""
    names = frame.columns
    places = {selection.where for selection in selections}
    if None in places or len({name.lower() for name in names}) < len(names):
        return frame
    conditions = [f.col(_quoted(names[place])) for place in sorted(p for p in places if p is not None)]
    return frame.where(functools.reduce(operator.or_, conditions))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _asks(sink: TwoPhaseCommitSink) -> bool:
    """Whether a sink needs columns of its own, also without a route."""
    return sink.own_columns is not None or sink.delete_when is not None


def _selection(columns: _Columns, route: Route) -> Selection:
    who = f"the route of sink {route.sink.name!r}"
    where = None if route.where is None else columns.predicate(who, "where", route.where)
    reject = None if route.reject is None else columns.predicate(who, "reject", route.reject)
    select = route.select or route.sink.own_columns
    chosen = None if select is None else tuple(c for text in select for c in columns.chosen(who, text))
    if chosen is None and (where is not None or reject is not None):
        chosen = columns.own
    if chosen is not None:
        names = [name for _, name in chosen]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice and route.select is not None:
            raise ConfigError(f"{who}: select gives two columns the name {twice[0]!r}: rename one with AS")
    if route.sink.delete_when is not None:
        place = columns.predicate(f"sink {route.sink.name!r}", "delete_when", route.sink.delete_when)
        chosen = (*(columns.own if chosen is None else chosen), (place, DELETED))
    return Selection(chosen, where, reject, route.reject or "")


class _Columns:
    """The stream's own columns and, after them, those that routes need; an expression that several need is one."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        #: (place, name) of the stream's own
        self.own = tuple(enumerate(df.columns))
        output = analyzed(df).output()
        self._places = {str(output.apply(n).exprId()): n for n in range(output.size())}
        self._known: list[tuple[Any, int]] = []
        self.added: list[Column] = []

    @property
    def count(self) -> int:
        """How many there are by now."""
        return len(self.own) + len(self.added)

    @property
    def droppable(self) -> bool:
        """Whether the stream's columns can be told apart by name, so that those nobody needs can be left out."""
        return len({name.lower() for _, name in self.own}) == len(self.own)

    def of(self, place: int) -> Column:
        """The column at a place."""
        if place >= len(self.own):
            return self.added[place - len(self.own)]
        return f.col(_quoted(self.own[place][1]))

    def used(self, selection: Selection) -> list[int]:
        """The places that a selection needs."""
        chosen = self.own if selection.columns is None else selection.columns
        return [place for place, _ in chosen] + [p for p in (selection.where, selection.reject) if p is not None]

    def moved(self, selection: Selection, places: Sequence[int]) -> Selection:
        """The selection when only these places are left, in this order."""
        new = {place: n for n, place in enumerate(places)}
        if selection.columns is None and len(places) > len(self.own):
            selection = Selection(self.own, selection.where, selection.reject, selection.rule)
        chosen = None if selection.columns is None else tuple((new[place], name) for place, name in selection.columns)
        where, reject = (None if place is None else new[place] for place in (selection.where, selection.reject))
        return Selection(chosen, where, reject, selection.rule)

    def predicate(self, who: str, option: str, text: str) -> int:
        """The place of a condition."""
        found = self._analysed(f"{who}: {option}={text!r}", text)
        if len(found) != 1 or not isinstance(found[0].kind, t.BooleanType):
            kinds = ", ".join(expression.kind.simpleString() for expression in found)
            raise ConfigError(f"{who}: {option}={text!r} must be a condition, true or false, and it is {kinds}")
        return self._place(found[0], f.expr(text))

    def chosen(self, who: str, text: str) -> list[tuple[int, str]]:
        """The (place, name) of what an expression gives: one column, or several for a star."""
        found = self._analysed(f"{who}: select={text!r}", text)
        if len(found) == 1:
            return [(self._place(found[0], f.expr(text)), found[0].name)]
        inside = text.strip().removesuffix(".*")
        chosen = []
        for expression in found:
            if expression.place is None and inside == text.strip():
                raise ConfigError(f"{who}: select={text!r} gives several columns: write them one by one")
            chosen.append((self._place(expression, f.expr(inside).getField(expression.name)), expression.name))
        return chosen

    def _place(self, expression: _Expression, column: Column) -> int:
        """Where it is: a column of the stream, one that another route needs too, or a new one."""
        if expression.place is not None:
            return expression.place
        for known, place in self._known:
            if known.semanticEquals(expression.made):
                return place
        place = self.count
        self._known.append((expression.made, place))
        self.added.append(column.alias(_OURS.format(len(self.added))))
        return place

    def _analysed(self, what: str, text: str) -> list[_Expression]:
        """What Spark makes of it, over the columns of the stream."""
        try:
            selected = self._df.select(f.expr(text))
            fields = selected.schema.fields
        except PySparkException as error:
            raise ConfigError(f"{what}: {first_line(error)}") from error
        plan = analyzed(selected)
        whole = analyzed(self._df)
        if plan.getClass().getSimpleName() != "Project" or not plan.child().sameResult(whole):
            raise ConfigError(
                f"{what} does not make one value of each row: no aggregate, window or explode goes here; do that in "
                "the query"
            )
        named = plan.projectList()
        found = [_Expression.read(named.apply(n), fields[n], self._places) for n in range(named.size())]
        for n in range(named.size()):
            if not named.apply(n).deterministic():
                raise ConfigError(
                    f"{what} gives another value each time it is computed, so a replay of the batch would differ from "
                    "its first run: make it from the row's own columns"
                )
        return found


@dataclass(frozen=True)
class _Expression:
    name: str
    kind: t.DataType
    #: Spark's own expression
    made: Any
    #: of a column of the stream; None for anything computed
    place: int | None

    @staticmethod
    def read(named: Any, field: t.StructField, places: dict[str, int]) -> _Expression:
        """From Spark's own."""
        expression = named
        while expression.getClass().getSimpleName() == "Alias":
            expression = expression.child()
        place = None
        if expression.getClass().getSimpleName() == _ATTRIBUTE:
            place = places.get(str(expression.exprId()))
        return _Expression(field.name, field.dataType, expression, place)
