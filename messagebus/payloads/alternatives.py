"""Choice of the alternative of a union that a value is for.

`choose(nodes)` is called once for each union. Kinds that JSON tells apart need no trying: a text is never
for an alternative of numbers. Several alternatives for values of one kind need a *tag*: a field of literals
that all of them have, with different values in each. Without a tag they must not overlap: a value that the
library itself would write for one of them fits no other. Harmless overlaps are allowed: both alternatives
read the value alike, or one is the narrower of two that go together (int before float, date before
datetime). Everything else is refused when it is declared, because no reader could tell.

Objects may have fields that a reader does not know. So one object can fit two alternatives although none
of the library's own would: then it fits neither.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

__all__ = [
    "ALL",
    "Elements",
    "Entries",
    "Fields",
    "Fit",
    "Form",
    "Node",
    "Unfit",
    "Unusable",
    "Values",
    "Written",
    "choose",
]

Fit = Callable[[typing.Any], typing.Any]
"""A function from a decoded JSON value to a value of the type. Raises Unfit."""

# Number of alternatives whose reasons the fault of a union gives, at most.
ALTERNATIVES_SHOWN_MAX = 3
KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "number",
    Decimal: "number",
    str: "text",
    list: "list",
    dict: "object",
}
# Pairs of written forms that share some texts or numbers. Other pairs never overlap.
_MEET = frozenset(
    frozenset(each)
    for each in (
        ("date", "datetime"),
        ("date", "time"),
        ("date", "Decimal"),
        ("datetime", "Decimal"),
        ("time", "datetime"),
        ("time", "Decimal"),
        ("UUID", "Decimal"),
        ("float", "Decimal"),
    )
)
_NARROWER = frozenset({("date", "datetime")})


class Unusable(TypeError):
    """Raised when JSON cannot hold values of an annotation; at declaration, never later."""


class Unfit(ValueError):
    """Raised when a value does not fit. The text names the path, and never shows the value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str | int] = []  # innermost first

    def below(self, step: str | int) -> Unfit:
        """Return this fault, its path extended by one outer step."""
        self.path.append(step)
        return self

    def __str__(self) -> str:
        told = ""
        for step in reversed(self.path):
            told += f"[{step}]" if isinstance(step, int) else f".{step}" if told else step
        return f"{told}: {self.reason}" if told else self.reason


@dataclass(frozen=True, slots=True)
class Written:
    """Texts or numbers of one written form. name: "" for every value of the kind, read unchanged."""

    name: str = ""
    fit: Fit | None = field(default=None, compare=False)


ALL = Written()


@dataclass(frozen=True, slots=True)
class Values:
    """A fixed set of values. read: (type, value) -> the value that is read."""

    read: Mapping[tuple[type, typing.Any], typing.Any]


@dataclass(frozen=True, slots=True)
class Elements:
    """Lists. items: node of each place; with `repeats` the last is for 0 or more. into: the result's type."""

    items: tuple[Node, ...]
    repeats: bool
    into: object


@dataclass(frozen=True, slots=True)
class Entries:
    """Objects with any names. item: the node of each value."""

    item: Node


@dataclass(slots=True, eq=False)
class Fields:
    """Objects with known names: name -> its node, and whether it is required. Other names are ignored.

    Filled after it is made, because an object may hold objects of its own kind.
    """

    of: dict[str, tuple[Node, bool]] = field(default_factory=dict)


Form = Written | Values | Elements | Entries | Fields


@dataclass(slots=True, eq=False)
class Node:
    """One annotation. name: as faults call it. takes: kind of JSON -> its forms; several for a union.

    is_foreign: other code reads it, and tells no more about it.
    """

    fit: Fit
    name: str
    takes: Mapping[str, tuple[Form, ...]]
    is_foreign: bool = False


def choose(nodes: Sequence[Node]) -> Node:
    """Return one node for all of them. Raises Unusable: some value could be for two of them."""
    by_kind = {kind: _among(kind, nodes) for kind in dict.fromkeys(KINDS.values())}
    foreign = [each for each in nodes if each.is_foreign]
    takes: dict[str, tuple[Form, ...]] = {}
    for node in nodes:
        for kind, forms in node.takes.items():
            takes[kind] = (*takes.get(kind, ()), *forms)

    def fit(value: typing.Any) -> typing.Any:
        one = by_kind.get(KINDS.get(type(value), ""))
        if one is not None:
            return one(value)
        return _first(foreign or nodes, value)

    return Node(fit, " | ".join(each.name for each in nodes), takes, bool(foreign))


def _among(kind: str, nodes: Sequence[Node]) -> Fit | None:
    """Return the reader for values of that kind; None when no alternative takes any."""
    some = [each for each in nodes if kind in each.takes]
    if len(some) < 2:
        return some[0].fit if some else None
    if kind == "object" and (tagged := _by_tag(some)) is not None:
        return tagged
    before: dict[int, int] = {id(each): 0 for each in some}
    for n, one in enumerate(some):
        for other in some[n + 1 :]:
            firsts = _go_first(kind, one, other)
            if len(firsts) > 1:
                raise Unusable(
                    f"{one.name} | {other.name}: nothing tells them apart in JSON;"
                    f" {_ADVICE.get(kind, 'say one of them')}"
                )
            for first in firsts:
                before[id(first)] -= 1
    ordered = sorted(some, key=lambda each: before[id(each)])
    if kind == "object":
        return lambda value: _only(ordered, value)
    return lambda value: _first(ordered, value)


_ADVICE = {
    "object": 'give each a field of its own literal, as kind: Literal["created"]',
    "text": "put it into a dataclass whose other fields say which",
}


def _by_tag(nodes: Sequence[Node]) -> Fit | None:
    forms = [each.takes["object"][0] for each in nodes if len(each.takes["object"]) == 1]
    objects = [each for each in forms if isinstance(each, Fields)]
    if len(objects) < len(nodes):
        return None
    for name in objects[0].of:
        keys = [_literals(each.of[name][0]) if name in each.of else [] for each in objects]
        found = {key: node.fit for some, node in zip(keys, nodes, strict=True) for key in some}
        if all(keys) and len(found) == sum(map(len, keys)):  # each has some, and all differ
            return _tagged(name, found)
    return None


def _literals(node: Node) -> list[tuple[type, typing.Any]]:
    """Return all values that fit there; empty when other values fit too."""
    forms = [form for forms in node.takes.values() for form in forms]
    found = [key for form in forms if isinstance(form, Values) for key in form.read]
    return found if all(isinstance(form, Values) for form in forms) else []


def _tagged(name: str, fits: Mapping[tuple[type, typing.Any], Fit]) -> Fit:
    told = ", ".join(repr(value) for _, value in fits)

    def fit(value: typing.Any) -> typing.Any:
        if name not in value:
            raise Unfit("missing").below(name)
        tag = value[name]
        try:
            one = fits[type(tag), tag]
        except (KeyError, TypeError):
            raise Unfit(f"one of {told} wanted").below(name) from None
        return one(value)

    return fit


def _first(nodes: Sequence[Node], value: typing.Any) -> typing.Any:
    faults = []
    for each in nodes:
        try:
            return each.fit(value)
        except Unfit as fault:
            faults.append(str(fault))
    raise Unfit("; or: ".join(faults[:ALTERNATIVES_SHOWN_MAX]))


def _only(nodes: Sequence[Node], value: typing.Any) -> typing.Any:
    found, faults = [], []
    for each in nodes:
        try:
            found.append((each.name, each.fit(value)))
        except Unfit as fault:
            faults.append(str(fault))
    if not found:
        raise Unfit("; or: ".join(faults[:ALTERNATIVES_SHOWN_MAX]))
    # When several alternatives fit, only an empty object is read alike by all.
    if any(one != {} for _, one in found[1:]):
        raise Unfit(f"fits {' and '.join(name for name, _ in found)}: one of them wanted")
    return found[0][1]


def _go_first(kind: str, one: Node, other: Node) -> list[Node]:
    """Return the nodes that must be tried before the other: none when the order does not matter, both when no
    order helps, because a value could be for both and would be read differently.
    """
    firsts: dict[int, Node] = {}
    for mine, theirs in _pairs(kind, one, other):
        if not _meets(kind, mine, theirs, frozenset()) or _reads_alike(mine, theirs):
            continue
        if _is_narrower(kind, mine, theirs):
            firsts[id(one)] = one
        elif _is_narrower(kind, theirs, mine):
            firsts[id(other)] = other
        else:
            return [one, other]
    return list(firsts.values())


def _pairs(kind: str, one: Node, other: Node) -> Iterator[tuple[Form, Form]]:
    return (
        (mine, theirs) for mine in one.takes.get(kind, ()) for theirs in other.takes.get(kind, ())
    )


def _is_narrower(kind: str, one: Form, other: Form) -> bool:
    match one, other:
        case Written(""), Written("float" | "Decimal"):
            return kind == "int"
        case Written(mine), Written(theirs):
            return (mine, theirs) in _NARROWER
        case Values(read), Written(""):
            return all(found == value for (_, value), found in read.items())
        case _:
            return False


def _reads_alike(one: Form, other: Form) -> bool:
    """Return whether both read alike the values that fit both."""
    match one, other:
        case Written(mine), Written(theirs):
            return mine == theirs
        case Values(mine), Values(theirs):
            return all(mine[key] is theirs[key] for key in mine.keys() & theirs.keys())
        case Elements(mine, True, into), Elements(theirs, True, other_into):
            return into is other_into and not _nodes_meet(mine[-1], theirs[-1], frozenset())
        case Entries(mine), Entries(theirs):
            return not _nodes_meet(mine, theirs, frozenset())
        case _:
            return False


def _nodes_meet(one: Node, other: Node, compared: frozenset[tuple[int, int]]) -> bool:
    if one.is_foreign or other.is_foreign:
        return True
    return any(
        _meets(kind, mine, theirs, compared)
        for kind in one.takes.keys() & other.takes.keys()
        for mine, theirs in _pairs(kind, one, other)
    )


def _meets(kind: str, one: Form, other: Form, compared: frozenset[tuple[int, int]]) -> bool:
    """Return whether a value written for one of them fits the other. compared: pairs under comparison."""
    match one, other:
        case Written(""), _:
            return True
        case Values(read), Values(theirs):
            return bool(read.keys() & theirs.keys())
        case Values(read), Written(name):
            return not name or any(_fits(other, value) for _, value in read)
        case (_, Values(_)) | (_, Written("")):
            return _meets(kind, other, one, compared)
        case Written(name), Written(theirs):
            return kind == "int" or name == theirs or frozenset((name, theirs)) in _MEET
        case Elements(_, _, _), Elements(_, _, _):
            return _elements_meet(one, other, compared)
        case Fields(), Fields():
            pair = (id(one), id(other))
            if pair in compared:
                return True
            compared = compared | {pair, pair[::-1]}
            return _fields_fit(one, other, compared) or _fields_fit(other, one, compared)
        case _:
            return True


def _fits(form: Written, value: typing.Any) -> bool:
    try:
        return form.fit is None or form.fit(value) is not None
    except Unfit:
        return False


def _elements_meet(one: Elements, other: Elements, compared: frozenset[tuple[int, int]]) -> bool:
    least = max(_least(one), _least(other))
    if not (one.repeats or len(one.items) == least) or not (
        other.repeats or len(other.items) == least
    ):
        return False
    return all(
        _nodes_meet(
            one.items[min(n, len(one.items) - 1)],
            other.items[min(n, len(other.items) - 1)],
            compared,
        )
        for n in range(least)
    )


def _least(elements: Elements) -> int:
    return len(elements.items) - elements.repeats


def _fields_fit(writer: Fields, reader: Fields, compared: frozenset[tuple[int, int]]) -> bool:
    """Return whether an object with all fields of the writer fits the reader."""
    if any(required and name not in writer.of for name, (_, required) in reader.of.items()):
        return False
    return all(
        _nodes_meet(node, reader.of[name][0], compared)
        for name, (node, _) in writer.of.items()
        if name in reader.of
    )
