"""Adapter from a handler as the application writes it to the one-argument function that a consumer runs.

Annotations decide which parameter gets what, once, when the handler is declared. A payload that does not
fit raises `Park`; what happens to it then is decided elsewhere.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast, get_args, get_origin

from messagebus._io.consume.runs import Batch, BatchHandler, is_coroutine_handler
from messagebus.errors import BindingError, WrongPayload
from messagebus.handling import Park
from messagebus.message import Delivery
from messagebus.payloads import Codec, Reader, reader

__all__ = ["Bound", "Middleware", "bind", "bind_batch", "name_of"]

Bound = Callable[[Delivery], object]
"""A coroutine function where the handler is one, else a plain function."""
Middleware = Callable[[Callable[[Any], Any], Any], Any]
"""Function around each run: of the next one, and of the delivery, or the list of them for a batch."""

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_WANTED = "bytes, str, dict, list, a dataclass, a pydantic model, or Delivery"


def name_of(handler: object) -> str:
    """Return the name that an application knows the handler by: ``module.name``."""
    inner = handler.func if isinstance(handler, functools.partial) else handler
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{getattr(inner, '__module__', '?')}.{name}"


def bind(
    handler: Callable[..., object],
    codecs: Sequence[Codec] = (),
    middleware: Sequence[Middleware] = (),
) -> Bound:
    """Wrap the handler as a function of the delivery alone.

    Its first parameter that is not a `Delivery` gets the payload, as its annotation says; one that is
    annotated `Delivery` gets the delivery, one annotated `Once` that of its message. Others must have
    defaults. Raises BindingError.
    """
    name = name_of(handler)
    payload, delivery, once = _roles(handler, name, Delivery)
    read = None if payload is None else _reader(payload, name, codecs)
    if read is None and delivery is None:
        raise BindingError(f"handler {name} takes nothing: a parameter wanted: {_WANTED}")
    call = _call(handler, read, payload, delivery)
    if once is not None:
        call = _call_once(handler, read, payload, delivery, once.name)
    if is_coroutine_handler(handler):

        async def run(given: Delivery) -> object:
            return await cast(Awaitable[object], call(given))
    else:

        def run(given: Delivery) -> object:  # type: ignore[misc] # the other kind of function
            return call(given)

    bound: Bound = _around(functools.update_wrapper(run, handler), name, middleware)
    return bound


def _around(run: Any, name: str, middleware: Sequence[Middleware]) -> Any:
    """Wrap a bound handler, the first of middleware outermost. Raises BindingError."""
    for each in reversed(middleware):
        if is_coroutine_handler(each) != is_coroutine_handler(run):
            kind = "a coroutine function" if is_coroutine_handler(run) else "a plain function"
            raise BindingError(f"middleware {name_of(each)}: handler {name} wants {kind}")
        run = functools.partial(each, run)
    return run


def bind_batch(
    handler: Callable[..., object],
    codecs: Sequence[Codec] = (),
    middleware: Sequence[Middleware] = (),
) -> BatchHandler:
    """Wrap a handler of batches: it takes a ``list[...]`` of payloads, a ``list[Delivery]``, or both."""
    name = name_of(handler)
    payload, deliveries, once = _roles(handler, name, list[Delivery])
    if once is not None:
        raise BindingError(
            f"handler {name}: parameter {once.name!r}: not for batches,"
            " which insert each message's id under a unique key instead"
        )
    read = None
    if payload is not None:
        inner = get_args(payload.annotation)
        if get_origin(payload.annotation) is not list or len(inner) != 1:
            raise BindingError(
                f"handler {name}: parameter {payload.name!r} of a batch: a list wanted, as in list[dict]"
            )
        one = payload.replace(annotation=inner[0])
        read = functools.partial(_fitting, _reader(one, name, codecs))
    elif deliveries is None:
        raise BindingError(f"handler {name} takes nothing: a list wanted of {_WANTED}")

    def call(batch: Batch) -> object:
        given: dict[str, object] = {}
        if payload is not None:
            given[payload.name] = batch.payloads
        if deliveries is not None:
            given[deliveries.name] = list(batch)
        return handler(**given)

    if is_coroutine_handler(handler):

        async def run(batch: Batch) -> object:
            return await cast(Awaitable[object], call(batch))
    else:

        def run(batch: Batch) -> object:  # type: ignore[misc] # the other kind of function
            return call(batch)

    return BatchHandler(_around(functools.update_wrapper(run, handler), name, middleware), read)


def _parameters(handler: Callable[..., object], name: str) -> list[inspect.Parameter]:
    if not callable(handler):
        raise BindingError(f"handler {handler!r}: a function wanted")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise BindingError(
            f"handler {name} is a generator: a function or coroutine function wanted"
        )
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError) as fault:
        raise BindingError(f"handler {name}: its parameters cannot be read: {fault}") from fault
    names = _names_around(handler)
    found = [
        _evaluated(each, names, name)
        for each in signature.parameters.values()
        if each.kind not in _VARIABLE
    ]
    if by_place := [each.name for each in found if each.kind is each.POSITIONAL_ONLY]:
        raise BindingError(f"handler {name}: parameter {by_place[0]!r} cannot be given by name")
    return found


def _names_around(handler: Any) -> dict[str, Any]:
    """Return the namespace in which the handler's annotations are looked up."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    if not inspect.isroutine(handler):  # a class, or an object of one
        within = "__init__" if isinstance(handler, type) else "__call__"
        handler = inspect.unwrap(getattr(handler, within))
    return getattr(getattr(handler, "__func__", handler), "__globals__", {})


def _evaluated(parameter: inspect.Parameter, names: dict[str, Any], name: str) -> inspect.Parameter:
    """Return the parameter with its annotation as a type.

    An annotation that cannot be evaluated is ignored where the parameter has a default. Return annotations
    are not looked at.
    """
    if not isinstance(parameter.annotation, str):
        return parameter
    try:
        return parameter.replace(annotation=eval(parameter.annotation, names))
    except Exception as fault:  # an annotation is code, which may raise anything
        if parameter.default is not inspect.Parameter.empty:
            return parameter
        if isinstance(fault, NameError):
            raise BindingError(
                f"handler {name}: annotation not found: {fault};"
                " types of payloads stand at the top of a module, outside of TYPE_CHECKING"
            ) from fault
        raise BindingError(f"handler {name}: annotations cannot be read: {fault}") from fault


def _roles(
    handler: Callable[..., object], name: str, delivery: Any
) -> tuple[inspect.Parameter | None, inspect.Parameter | None, inspect.Parameter | None]:
    """Return the parameters for the payload, the delivery and its `Once`; None where there is none.

    A parameter with a default is the application's own, unless it is annotated as the delivery.
    """
    parameters = _parameters(handler, name)
    onces = [each for each in parameters if _is_once(each.annotation)]
    parameters = [each for each in parameters if each not in onces]
    own = inspect.Parameter.empty
    deliveries = [each for each in parameters if each.annotation == delivery]
    payloads = [each for each in parameters if each.annotation != delivery and each.default is own]
    for extra in (
        *payloads[1:],
        *onces[1:],
        *(each for each in deliveries[1:] if each.default is own),
    ):
        raise BindingError(f"handler {name}: nothing to give to parameter {extra.name!r}")
    return next(iter(payloads), None), next(iter(deliveries), None), next(iter(onces), None)


def _is_once(annotation: object) -> bool:
    """Return whether it is `messagebus.inbox.Once`. A type that is named is imported already."""
    module = sys.modules.get("messagebus.inbox")
    return module is not None and annotation is module.Once


def _reader(payload: inspect.Parameter, name: str, codecs: Sequence[Codec]) -> Reader:
    if payload.annotation is inspect.Parameter.empty:
        raise BindingError(f"handler {name}: parameter {payload.name!r} has no type: {_WANTED}")
    try:
        return reader(payload.annotation, codecs)
    except Exception as fault:  # its parts are the application's own
        raise BindingError(f"handler {name}: parameter {payload.name!r}: {fault}") from fault


def _call(
    handler: Callable[..., object],
    read: Reader | None,
    payload: inspect.Parameter | None,
    delivery: inspect.Parameter | None,
) -> Callable[[Delivery], object]:
    """Return a call with arguments by place, where they come first in this order, else by name.

    By name costs 0.3 us more. A wrapper may have another signature than it shows, so its own code is asked.
    """
    names = tuple(each.name for each in (payload, delivery) if each is not None)
    code = handler.__code__ if inspect.isfunction(handler) else None
    if code is None or code.co_varnames[: code.co_argcount][: len(names)] != names:
        return lambda given: handler(**dict(zip(names, _values(read, given), strict=False)))
    if read is None:
        return handler
    if delivery is None:
        return lambda given: handler(_fitting(read, given))
    return lambda given: handler(_fitting(read, given), given)


def _values(read: Reader | None, given: Delivery) -> tuple[object, ...]:
    """Return the payload, where it is wanted, and the delivery."""
    return (given,) if read is None else (_fitting(read, given), given)


def _call_once(
    handler: Callable[..., object],
    read: Reader | None,
    payload: inspect.Parameter | None,
    delivery: inspect.Parameter | None,
    once: str,
) -> Callable[[Delivery], object]:
    from messagebus._io.consume.dedup import once_of  # only where it is used

    def call(given: Delivery) -> object:
        arguments: dict[str, object] = {once: once_of(given)}
        if read is not None and payload is not None:
            arguments[payload.name] = _fitting(read, given)
        if delivery is not None:
            arguments[delivery.name] = given
        return handler(**arguments)

    return call


def _fitting(read: Reader, given: Delivery) -> Any:
    try:
        return read(given)
    except WrongPayload as fault:
        raise Park(f"payload does not fit: {fault}") from fault
