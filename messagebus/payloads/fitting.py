"""Conversion of decoded JSON values to annotated types, with a check that they fit.

`fitter(annotation)` is called once, when a handler is declared, and gives a function for each value:
small closures, one for each node of the annotation. It is strict: "1" is no int, True is no int, 1 is no
text. Types without a form in JSON are read from the one form that `messagebus.payloads` writes. Fields
that a dataclass does not know are passed over, so that a publisher may add one before its readers
know it. It decides nothing about bytes and content types.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import functools
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from uuid import UUID

from messagebus.errors import reason_of
from messagebus.payloads.alternatives import (
    ALL,
    KINDS,
    Elements,
    Entries,
    Fields,
    Fit,
    Node,
    Unfit,
    Unusable,
    Values,
    Written,
    choose,
)

__all__ = ["Fit", "Fitters", "Foreign", "Unfit", "Unusable", "bare", "fitter", "is_constraint"]

Foreign = Callable[[typing.Any], Fit | None]
"""Asked first for each annotation: the reader of another library, None to use ours."""

_JSON_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    Decimal: "a number",
    bool: "true or false",
    type(None): "null",
}
# Annotations of a list -> the type that it becomes.
_LISTS: dict[typing.Any, Callable[[typing.Any], typing.Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
    tuple: tuple,
}
_OBJECTS = (dict, abc.Mapping, abc.MutableMapping)
# Qualifiers that say nothing about values.
_QUALIFIERS = frozenset({"Final", "Required", "NotRequired", "ReadOnly"})
# Modules whose words in an `Annotated` are constraints.
_CONSTRAINING = frozenset({"annotated_types", "pydantic", "pydantic_core", "msgspec"})


def fitter(annotation: typing.Any, foreign: Foreign = lambda _: None) -> Fit:
    """Return the reader for values of that annotation. Raises Unusable."""
    return Fitters(foreign).of(annotation)


def bare(annotation: typing.Any) -> typing.Any:
    """Return the type behind a new type, an alias or an `Annotated` without constraints."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            if any(is_constraint(each) for each in annotation.__metadata__):
                return annotation
            annotation = annotation.__origin__
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif getattr(typing.get_origin(annotation), "_name", "") in _QUALIFIERS:
            annotation = typing.get_args(annotation)[0]
        else:
            return annotation


def is_constraint(word: object) -> bool:
    """Return whether a word in an `Annotated` limits the values that fit."""
    return type(word).__module__.partition(".")[0] in _CONSTRAINING


def _unfit(wanted: str, value: object) -> Unfit:
    return Unfit(f"{wanted} wanted, not {_JSON_NAMES.get(type(value), type(value).__name__)}")


class Fitters:
    """The readers of one annotation. A type that may hold itself is made once.

    exact: whether numbers with a fraction must come as `Decimal`, because a float would differ from the
    written number; known once `of` has returned.
    """

    def __init__(self, foreign: Foreign) -> None:
        self.exact = False
        self._foreign = foreign
        self._nodes: dict[typing.Any, Node] = {}

    def of(self, annotation: typing.Any) -> Fit:
        """Return the reader for values of that annotation. Raises Unusable."""
        try:
            return self._node(annotation).fit
        except RecursionError:
            raise Unusable(
                f"{annotation!r} holds itself without end: make it a dataclass"
            ) from None

    def _node(self, annotation: typing.Any) -> Node:
        if (theirs := self._foreign(annotation)) is not None:
            self.exact = True  # the other library gets it as it was written
            return Node(theirs, _name(annotation), {"object": (ALL,)}, is_foreign=True)
        if (plain := bare(annotation)) is not annotation:
            return self._node(plain)
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if annotation in (typing.Any, object):
            return Node(self._anything, "Any", dict.fromkeys(KINDS.values(), (ALL,)))
        if origin is None and annotation in _SCALARS:
            self.exact = self.exact or annotation is Decimal
            return _SCALARS[annotation]
        if origin in (typing.Union, types.UnionType):
            return self._union(args)
        if origin is typing.Literal:
            return _literal(args)
        found = annotation if origin is None else origin
        if found in _LISTS:
            return self._list(found, args)
        if found in _OBJECTS:
            return self._object(annotation, args)
        if isinstance(found, type) and found not in (type, typing.Annotated):
            return self._of_class(annotation, found)
        raise Unusable(f"{annotation!r} is no type that a payload can have{_advice(annotation)}")

    def _of_class(self, annotation: typing.Any, cls: type) -> Node:
        if dataclasses.is_dataclass(cls) or typing.is_typeddict(cls):
            return self._fields(annotation, cls)
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return self._named_tuple(annotation, cls)
        if issubclass(cls, enum.Enum):
            return _enum(cls)
        if cls is bytes:
            raise Unusable("bytes within JSON: say str, and how it is written (base64, hex)")
        raise Unusable(
            f"{cls.__qualname__} is no type that a payload can have: make it a dataclass"
        )

    def _union(self, args: tuple[typing.Any, ...]) -> Node:
        """Build the node of a union: None apart; models of another library together, by its own rules."""
        some = [each for each in args if each is not type(None)]
        models = [each for each in some if self._foreign(each) is not None]
        if len(models) > 1:
            together = functools.reduce(operator.or_, models)
            if self._foreign(together) is not None:
                some = [*(each for each in some if each not in models), together]
        nodes = [self._node(each) for each in some]
        one = nodes[0] if len(nodes) == 1 else choose(nodes)
        if type(None) not in args:
            return one
        fit, takes = one.fit, {**one.takes, "null": (ALL,)}
        name = f"{one.name} | None"
        return Node(
            lambda value: None if value is None else fit(value), name, takes, one.is_foreign
        )

    def _list(self, kind: typing.Any, args: tuple[typing.Any, ...]) -> Node:
        into = _LISTS[kind]
        if into is tuple and args and args[-1] is not Ellipsis:
            return _tuple([self._node(each) for each in args], tuple)
        item = self._node(args[0] if args else typing.Any)
        fit = _list(item.fit)
        form = Elements((item,), True, into)
        name = f"{kind.__name__}[{item.name}]"
        return Node(fit if into is list else _converted(fit, into), name, {"list": (form,)})

    def _named_tuple(self, annotation: typing.Any, cls: typing.Any) -> Node:
        """Build the node of a named tuple, which JSON writes as a list."""
        hints = _hints(annotation, cls)
        items = [self._node(hints.get(name, typing.Any)) for name in cls._fields]
        return _tuple(
            items, cls, lambda found: _built(cls, dict(zip(cls._fields, found, strict=True)))
        )

    def _object(self, annotation: typing.Any, args: tuple[typing.Any, ...]) -> Node:
        if args and bare(args[0]) is not str:
            raise Unusable(f"{annotation!r}: the keys of a JSON object are texts (str)")
        item = self._node(args[1] if args else typing.Any)
        return Node(_object(item.fit), f"dict[str, {item.name}]", {"object": (Entries(item),)})

    def _anything(self, value: typing.Any) -> typing.Any:
        return _floats(value) if self.exact else value

    def _fields(self, annotation: typing.Any, cls: typing.Any) -> Node:
        """Build the node of a dataclass or a typed dictionary."""
        if annotation in self._nodes:
            return self._nodes[annotation]
        fields = Fields()
        made = Node(lambda value: made.fit(value), _name(annotation), {"object": (fields,)})
        self._nodes[annotation] = made  # while it is being made
        hints = _hints(annotation, cls)
        for name, required in _given(cls).items():
            try:
                fields.of[name] = self._node(hints[name]), required
            except Unusable as fault:
                raise Unusable(f"{cls.__qualname__}.{name}: {fault}") from None
        wanted = [(name, node, required) for name, (node, required) in fields.of.items()]
        made.fit = _object_of(None if typing.is_typeddict(cls) else cls, wanted)
        return made


def _name(annotation: typing.Any) -> str:
    named = typing.get_origin(annotation) is None and isinstance(annotation, type)
    return annotation.__qualname__ if named else str(annotation)


def _advice(annotation: object) -> str:
    if typing.get_origin(annotation) is typing.Annotated:
        return ": nothing here checks that constraint; make it a model of pydantic's"
    if isinstance(annotation, typing.TypeVar):
        return ": say what it stands for"
    return ""


def _given(cls: typing.Any) -> dict[str, bool]:
    """Return the names that the object may have, and whether each is required."""
    if typing.is_typeddict(cls):
        hints = typing.get_type_hints(cls, include_extras=True)
        return {name: _is_required(cls, name, hint) for name, hint in hints.items()}
    return {
        each.name: each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
        for each in cls.__dataclass_fields__.values()
        if each.init and each._field_type is not dataclasses._FIELD_CLASSVAR  # type: ignore[attr-defined]
    }


def _is_required(cls: typing.Any, name: str, hint: typing.Any) -> bool:
    """Return whether a name is required. The hint's own qualifier wins, since with annotations as texts
    Python counts it wrongly.
    """
    match getattr(typing.get_origin(hint), "_name", ""):
        case "Required":
            return True
        case "NotRequired":
            return False
        case _:
            return name in cls.__required_keys__


def _hints(annotation: typing.Any, cls: typing.Any) -> dict[str, typing.Any]:
    """Return the annotations of all fields, with type variables replaced. Raises Unusable."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as fault:  # an annotation is code, which may raise anything
        raise Unusable(f"{cls.__qualname__}: its annotations cannot be read: {fault}") from fault
    whole = {
        name: hint.type if isinstance(hint, dataclasses.InitVar) else hint
        for name, hint in hints.items()
    }
    return {**whole, **_own_hints(annotation, whole)}


def _own_hints(annotation: typing.Any, hints: Mapping[str, typing.Any]) -> dict[str, typing.Any]:
    """Replace type variables class by class: a base may use the same variable for another type."""
    cls = typing.get_origin(annotation) or annotation
    args = typing.get_args(annotation)
    stand_for = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    found: dict[str, typing.Any] = {}
    for base in reversed(vars(cls).get("__orig_bases__", cls.__bases__)):
        of = typing.get_origin(base) or base
        if isinstance(of, type) and of not in (typing.Generic, typing.Protocol):
            found |= _own_hints(_filled(base, stand_for), hints)
    own = vars(cls).get("__annotations__", {})
    return found | {name: _filled(hints[name], stand_for) for name in own if name in hints}


def _filled(annotation: typing.Any, bindings: Mapping[typing.Any, typing.Any]) -> typing.Any:
    if isinstance(annotation, typing.TypeVar):
        return bindings.get(annotation, annotation)
    variables = getattr(annotation, "__parameters__", ())
    if bindings and variables and typing.get_origin(annotation) is not None:
        return annotation[tuple(bindings.get(each, each) for each in variables)]
    return annotation


def _object_of(cls: typing.Any, fields: list[tuple[str, Node, bool]]) -> Fit:
    """Return the reader of an object. cls: None for a dictionary."""
    known = [(name, node.fit, required) for name, node, required in fields]

    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not dict:
            raise _unfit("an object", value)
        found = {}
        for name, each, required in known:
            if name in value:
                try:
                    found[name] = each(value[name])
                except Unfit as fault:
                    raise fault.below(name) from None
            elif required:
                raise Unfit("missing").below(name)
        return found if cls is None else _built(cls, found)

    return fit


def _built(cls: typing.Any, fields: Mapping[str, typing.Any]) -> typing.Any:
    """Make the object. The application's own checks run here, and may raise anything."""
    try:
        return cls(**fields)
    except (ValueError, TypeError, AssertionError) as fault:  # raised by checks
        raise Unfit(f"{cls.__name__}: {reason_of(fault)}") from fault
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as fault:  # its text may quote the value
        raise Unfit(f"{cls.__name__}: its own checks raised {type(fault).__name__}") from fault


def _at(step: str | int, fit: Fit, value: typing.Any) -> typing.Any:
    try:
        return fit(value)
    except Unfit as fault:
        raise fault.below(step) from None


def _list(item: Fit) -> Fit:
    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not list:
            raise _unfit("a list", value)
        try:
            return [item(each) for each in value]
        except Unfit:
            return [_at(n, item, each) for n, each in enumerate(value)]  # name the element

    return fit


def _tuple(
    items: list[Node], into: typing.Any, make: Callable[[Iterable[typing.Any]], typing.Any] = tuple
) -> Node:
    fits = [each.fit for each in items]

    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not list:
            raise _unfit("a list", value)
        if len(value) != len(fits):
            raise Unfit(f"{len(fits)} elements wanted, not {len(value)}")
        return make([_at(n, each, value[n]) for n, each in enumerate(fits)])

    name = f"tuple[{', '.join(each.name for each in items)}]" if into is tuple else into.__name__
    return Node(fit, name, {"list": (Elements(tuple(items), False, into),)})


def _object(item: Fit) -> Fit:
    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not dict:
            raise _unfit("an object", value)
        return {key: _at(key, item, each) for key, each in value.items()}

    return fit


def _converted(fit: Fit, into: Callable[[typing.Any], typing.Any]) -> Fit:
    def converted(value: typing.Any) -> typing.Any:
        try:
            return into(fit(value))
        except TypeError:  # a set of unhashable elements
            raise Unfit("elements that cannot be told apart") from None

    return converted


def _of_kind(kind: type) -> Node:
    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not kind:  # not isinstance: True is no number
            raise _unfit(_JSON_NAMES[kind], value)
        return value

    return Node(fit, "None" if kind is type(None) else kind.__name__, {KINDS[kind]: (ALL,)})


def _float(value: typing.Any) -> float:
    if type(value) not in (int, float, Decimal):
        raise _unfit("a number", value)
    try:
        found = float(value)
    except OverflowError:
        raise Unfit("a number too large") from None
    if found - found != 0:
        raise Unfit("a number too large")
    return found


def _floats(value: typing.Any) -> typing.Any:
    """Return the value as it would have been decoded without exact numbers."""
    match value:
        case Decimal():
            return _float(value)
        case list():
            return [_floats(each) for each in value]
        case dict():
            return {key: _floats(each) for key, each in value.items()}
        case _:
            return value


def _decimal(value: typing.Any) -> Decimal:
    """Read a text or a number, exactly as it was written."""
    if type(value) not in (str, int, float, Decimal):
        raise _unfit("a decimal number as text", value)
    try:
        found = Decimal(repr(value) if type(value) is float else value)
    except InvalidOperation:
        raise Unfit("not a decimal number") from None
    if not found.is_finite():
        raise Unfit("not a finite number")
    return found


def _number(name: str, fit: Fit, *kinds: str) -> Node:
    return Node(fit, name, dict.fromkeys(kinds, (Written(name, fit),)))


# The form of ISO 8601 without years and months, which are of no certain length.
_DURATION = re.compile(
    r"([+-]?)P(?!$)(?:(\d{1,9})W)?(?:(\d{1,9})D)?"
    r"(?:T(?=\d)(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,15})(?:\.(\d{1,6})\d*)?S)?)?",
    re.ASCII,
)


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    sign, *parts, fraction = found.groups()
    weeks, days, hours, minutes, seconds = (int(each or 0) for each in parts)
    try:
        read = timedelta(
            weeks=weeks,
            days=days,
            hours=hours,
            minutes=minutes,
            seconds=seconds,
            microseconds=int((fraction or "0").ljust(6, "0")),
        )
    except OverflowError:
        raise ValueError(text) from None
    return -read if sign == "-" else read


def _text_of(what: str, read: Callable[[str], typing.Any], kind: type) -> Node:
    """Build the node of a type that JSON has as text only. what: as the fault calls it."""

    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not str:
            raise _unfit(f"{what} as text", value)
        try:
            return read(value)
        except ValueError:
            raise Unfit(f"not {what}") from None

    return Node(fit, kind.__name__, {"text": (Written(kind.__name__, fit),)})


def _enum(cls: type[enum.Enum]) -> Node:
    if wrong := [each.name for each in cls if type(each.value) not in (str, int)]:
        raise Unusable(f"{cls.__qualname__}.{wrong[0]}: only texts and whole numbers as values")
    if issubclass(cls, enum.Flag):
        return _flags(cls)
    return _one_of({(type(each.value), each.value): each for each in cls}, cls.__qualname__)


def _flags(cls: type[enum.Flag]) -> Node:
    """Build the node of flags: any combination of them, or none; no unnamed bit."""
    all_bits = functools.reduce(operator.or_, (each.value for each in cls), 0)

    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not int:
            raise _unfit("flags as a whole number", value)
        if value & ~all_bits:
            raise Unfit(f"flags out of {all_bits} wanted")
        return cls(value)

    return Node(fit, cls.__qualname__, {"int": (Written(cls.__qualname__, fit),)})


def _literal(args: tuple[typing.Any, ...]) -> Node:
    values = [each.value if isinstance(each, enum.Enum) else each for each in args]
    if wrong := [each for each in values if type(each) not in (str, int, bool, type(None))]:
        raise Unusable(f"Literal[{wrong[0]!r}]: only texts, whole numbers, True, False and None")
    found = {(type(v), v): each for v, each in zip(values, args, strict=True)}
    return _one_of(found, f"Literal{list(args)}")


def _one_of(members: Mapping[tuple[type, typing.Any], typing.Any], name: str) -> Node:
    told = ", ".join(repr(value) for _, value in members)

    def fit(value: typing.Any) -> typing.Any:
        try:
            return members[type(value), value]
        except (KeyError, TypeError):
            raise Unfit(f"one of {told} wanted") from None

    form = Values(members)
    return Node(fit, name, {KINDS[kind]: (form,) for kind, _ in members})


_SCALARS: dict[typing.Any, Node] = {
    str: _of_kind(str),
    int: _of_kind(int),
    bool: _of_kind(bool),
    None: _of_kind(type(None)),
    type(None): _of_kind(type(None)),
    float: _number("float", _float, "int", "number"),
    Decimal: _number("Decimal", _decimal, "int", "number", "text"),
    datetime: _text_of("a date and time (ISO 8601)", datetime.fromisoformat, datetime),
    date: _text_of("a date (ISO 8601)", date.fromisoformat, date),
    time: _text_of("a time (ISO 8601)", time.fromisoformat, time),
    timedelta: _text_of("a duration (ISO 8601, as PT1.5S)", _duration, timedelta),
    UUID: _text_of("a UUID", UUID, UUID),
}
