"""Whether a value that came as JSON fits a type, and the value of that type.

`fitter(annotation)` is asked once, when a handler is declared, and gives a function for each value:
small closures, one for each node of the annotation. Strict: "1" is no int, True is no int, 1 is no
text; what JSON has no form for is read from the one form that `messagebus.payloads` writes. Fields
that a dataclass does not know are passed over, so that a publisher may add one before its readers
know it. It decides nothing about bytes and content types.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from uuid import UUID

__all__ = ["Fit", "Foreign", "Unfit", "Unusable", "fitter"]

Fit = Callable[[typing.Any], typing.Any]
"""From a decoded JSON value to one of the type. Raises Unfit."""
Foreign = Callable[[typing.Any], Fit | None]
"""Asked first for each annotation: how somebody else reads it, None for ours."""

# A union of dataclasses tells why none fitted, in so many words at most.
ALTERNATIVES_TOLD_MAX = 3
_JSON_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


class Unusable(TypeError):
    """Raised when an annotation says nothing that JSON could hold; at declaration, never later."""


class Unfit(ValueError):
    """Raised when a value does not fit. The text names the path, and never shows the value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str | int] = []  # innermost first

    def below(self, step: str | int) -> Unfit:
        """The same, seen from one level further out."""
        self.path.append(step)
        return self

    def __str__(self) -> str:
        told = ""
        for step in reversed(self.path):
            told += f"[{step}]" if isinstance(step, int) else f".{step}" if told else step
        return f"{told}: {self.reason}" if told else self.reason


def fitter(annotation: typing.Any, foreign: Foreign = lambda _: None) -> Fit:
    """How values of that annotation are read. Raises Unusable."""
    return _Fitters(foreign).of(annotation)


def _unfit(wanted: str, value: object) -> Unfit:
    return Unfit(f"{wanted} wanted, not {_JSON_NAMES.get(type(value), type(value).__name__)}")


class _Fitters:
    """One annotation's readers. A dataclass is made once, so that it may hold itself."""

    def __init__(self, foreign: Foreign) -> None:
        self._foreign = foreign
        self._made: dict[type, Fit] = {}

    def of(self, annotation: typing.Any) -> Fit:
        if (theirs := self._foreign(annotation)) is not None:
            return theirs
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            return self.of(typing.get_args(annotation)[0])
        if annotation in _SCALARS:
            return _SCALARS[annotation]
        if origin is not None:
            return self._of_generic(annotation, origin, typing.get_args(annotation))
        if isinstance(annotation, type):
            return self._of_class(annotation)
        raise Unusable(f"{annotation!r} is no type that a payload can have")

    def _of_generic(
        self, annotation: typing.Any, origin: typing.Any, args: tuple[typing.Any, ...]
    ) -> Fit:
        if origin in (typing.Union, types.UnionType):
            return self._union(args)
        if origin is typing.Literal:
            return _literal(args)
        if origin in (list, Sequence):
            return _list(self.of(args[0]))
        if origin in (set, frozenset):
            return _converted(_list(self.of(args[0])), origin)
        if origin is tuple:
            return self._tuple(args)
        if origin in (dict, Mapping):
            if args[0] is not str:
                raise Unusable(f"{annotation!r}: the keys of a JSON object are texts (str)")
            return _object(self.of(args[1]))
        raise Unusable(f"{annotation!r} is no type that a payload can have")

    def _of_class(self, cls: type) -> Fit:
        if dataclasses.is_dataclass(cls):
            return self._dataclass(cls)
        if issubclass(cls, enum.Enum):
            return _enum(cls)
        if cls is tuple:
            return _converted(_of_kind(list), tuple)
        if cls is bytes:
            raise Unusable("bytes within JSON: say str, and how it is written (base64, hex)")
        raise Unusable(
            f"{cls.__qualname__} is no type that a payload can have: make it a dataclass"
        )

    def _union(self, args: tuple[typing.Any, ...]) -> Fit:
        """The first alternative that fits, in the order of the annotation."""
        some = [self.of(each) for each in args if each is not type(None)]
        optional = len(some) < len(args)
        if len(some) == 1:
            only = some[0]
            return lambda value: None if value is None else only(value)

        def fit(value: typing.Any) -> typing.Any:
            if value is None and optional:
                return None
            faults = []
            for each in some:
                try:
                    return each(value)
                except Unfit as fault:
                    faults.append(str(fault))
            raise Unfit("; or: ".join(faults[:ALTERNATIVES_TOLD_MAX]))

        return fit

    def _tuple(self, args: tuple[typing.Any, ...]) -> Fit:
        if len(args) == 2 and args[1] is Ellipsis:
            return _converted(_list(self.of(args[0])), tuple)
        fits = [self.of(each) for each in args]

        def fit(value: typing.Any) -> typing.Any:
            if type(value) is not list:
                raise _unfit("a list", value)
            if len(value) != len(fits):
                raise Unfit(f"{len(fits)} elements wanted, not {len(value)}")
            return tuple(_at(n, each, value[n]) for n, each in enumerate(fits))

        return fit

    def _dataclass(self, cls: type) -> Fit:
        if cls in self._made:
            return self._made[cls]
        self._made[cls] = lambda value: self._made[cls](value)  # while it is being made
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except (NameError, TypeError) as fault:
            raise Unusable(
                f"{cls.__qualname__}: its annotations cannot be read: {fault}"
            ) from fault
        self._made[cls] = _fields_of(cls, [self._field(cls, f, hints) for f in _given(cls)])
        return self._made[cls]

    def _field(
        self, cls: type, field: dataclasses.Field[typing.Any], hints: dict[str, typing.Any]
    ) -> tuple[str, Fit, bool]:
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        try:
            return field.name, self.of(hints[field.name]), required
        except Unusable as fault:
            raise Unusable(f"{cls.__qualname__}.{field.name}: {fault}") from None


def _given(cls: type) -> list[dataclasses.Field[typing.Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]


def _fields_of(cls: type, fields: list[tuple[str, Fit, bool]]) -> Fit:
    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not dict:
            raise _unfit("an object", value)
        found = {}
        for name, each, required in fields:
            if name in value:
                try:
                    found[name] = each(value[name])
                except Unfit as fault:
                    raise fault.below(name) from None
            elif required:
                raise Unfit("missing").below(name)
        try:
            return cls(**found)
        except (ValueError, TypeError, AssertionError) as fault:  # what its own checks say
            raise Unfit(f"{cls.__name__}: {fault or type(fault).__name__}") from fault

    return fit


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
            return [_at(n, item, each) for n, each in enumerate(value)]  # which one it was

    return fit


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
        except TypeError:  # a set of what has no hash
            raise Unfit("elements that cannot be told apart") from None

    return converted


def _of_kind(kind: type) -> Fit:
    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not kind:  # not isinstance: True is no number
            raise _unfit(_JSON_NAMES[kind], value)
        return value

    return fit


def _float(value: typing.Any) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise Unfit("a number too large") from None
    if type(value) is not float:
        raise _unfit("a number", value)
    return value


def _decimal(value: typing.Any) -> Decimal:
    """From a text, which is exact, or from a number as it was written."""
    if type(value) not in (str, int, float):
        raise _unfit("a decimal number as text", value)
    try:
        found = Decimal(repr(value) if type(value) is float else value)
    except InvalidOperation:
        raise Unfit("not a decimal number") from None
    if not found.is_finite():
        raise Unfit("not a finite number")
    return found


def _text_of(what: str, read: Callable[[str], typing.Any]) -> Fit:
    """What JSON has as text only. what: as the fault calls it."""

    def fit(value: typing.Any) -> typing.Any:
        if type(value) is not str:
            raise _unfit(f"{what} as text", value)
        try:
            return read(value)
        except ValueError:
            raise Unfit(f"not {what}") from None

    return fit


def _enum(cls: type[enum.Enum]) -> Fit:
    if wrong := [each.name for each in cls if type(each.value) not in (str, int)]:
        raise Unusable(f"{cls.__qualname__}.{wrong[0]}: only texts and whole numbers as values")
    return _one_of({(type(each.value), each.value): each for each in cls})


def _literal(args: tuple[typing.Any, ...]) -> Fit:
    if wrong := [each for each in args if type(each) not in (str, int, bool, type(None))]:
        raise Unusable(f"Literal[{wrong[0]!r}]: only texts, whole numbers, True, False and None")
    return _one_of({(type(each), each): each for each in args})


def _one_of(members: Mapping[tuple[type, typing.Any], typing.Any]) -> Fit:
    told = ", ".join(repr(value) for _, value in members)

    def fit(value: typing.Any) -> typing.Any:
        try:
            return members[type(value), value]
        except (KeyError, TypeError):
            raise Unfit(f"one of {told} wanted") from None

    return fit


def _anything(value: typing.Any) -> typing.Any:
    return value


_SCALARS: dict[typing.Any, Fit] = {
    typing.Any: _anything,
    object: _anything,
    str: _of_kind(str),
    int: _of_kind(int),
    bool: _of_kind(bool),
    dict: _of_kind(dict),
    list: _of_kind(list),
    None: _of_kind(type(None)),
    type(None): _of_kind(type(None)),
    float: _float,
    Decimal: _decimal,
    datetime: _text_of("a date and time (ISO 8601)", datetime.fromisoformat),
    date: _text_of("a date (ISO 8601)", date.fromisoformat),
    time: _text_of("a time (ISO 8601)", time.fromisoformat),
    UUID: _text_of("a UUID", UUID),
}
