"""Dependencies of handlers, as in FastAPI and FastStream.

    async def session() -> AsyncIterator[Session]:
        async with Session() as found:
            yield found

    @app.subscriber("orders", subscription="billing")
    @inject
    async def bill(order: Order, session: Annotated[Session, Depends(session)]) -> None: ...

A dependency is a function, plain or coroutine, or a generator whose end runs after the handler's. It may
have dependencies of its own, and a parameter annotated `Delivery`. It is called once a run.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from messagebus import Delivery
from messagebus.errors import BindingError
from messagebus.payloads.binding import name_of

__all__ = ["Depends", "inject"]

H = TypeVar("H", bound=Callable[..., Any])
DELIVERY = "_delivery"


@dataclass(frozen=True, slots=True)
class Depends:
    """Marker of a parameter whose value is a dependency, not part of the message.

    dependency: function that returns or yields the value.
    use_cache: True: call the function once for each run of the handler, for all parameters that name it.
    """

    dependency: Callable[..., Any]
    use_cache: bool = True


@dataclass(frozen=True, slots=True)
class _Plan:
    """A function and where its parameters come from. delivery: the name of the parameter that gets it."""

    call: Callable[..., Any]
    needs: dict[str, tuple[_Plan, bool]]
    delivery: str | None

    @property
    def waits(self) -> bool:
        """True where it or what it needs wants a loop."""
        kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        return any(kind(self.call) for kind in kinds) or any(
            p.waits for p, _ in self.needs.values()
        )


def inject(handler: H) -> H:
    """Return the handler without its parameters marked `Depends`. Raises BindingError.

    Tests pass them by name: ``await bill(order, session=fake)``. A dependency of a batch handler cannot have
    a parameter annotated `Delivery`. Cost: about 5 us for a run with one dependency.
    """
    plan, own = _plan(handler), inspect.signature(handler)
    is_async = inspect.iscoroutinefunction(handler)
    if not is_async and plan.waits:
        raise BindingError(f"{name_of(handler)}: a plain handler, whose dependency wants a loop")
    wants_delivery = plan.delivery is None and any(_any_delivery(p) for p, _ in plan.needs.values())
    left = [each for name, each in own.parameters.items() if name not in plan.needs]
    if wants_delivery:
        keyword = inspect.Parameter.KEYWORD_ONLY
        left.append(inspect.Parameter(DELIVERY, keyword, annotation=Delivery))

    def split(given: dict[str, Any]) -> Delivery | None:
        found = given.pop(DELIVERY, None) if wants_delivery else given.get(plan.delivery or "")
        return cast("Delivery | None", found)

    if is_async:

        @functools.wraps(handler)
        async def injected(*args: Any, **given: Any) -> Any:
            delivery = split(given)
            async with contextlib.AsyncExitStack() as stack:
                known: dict[Any, Any] = {}
                for name, (need, cached) in plan.needs.items():
                    if name not in given:
                        given[name] = await _resolved_async(need, cached, delivery, known, stack)
                return await handler(*args, **given)
    else:

        @functools.wraps(handler)
        def injected(*args: Any, **given: Any) -> Any:
            delivery = split(given)
            with contextlib.ExitStack() as stack:
                known: dict[Any, Any] = {}
                for name, (need, cached) in plan.needs.items():
                    if name not in given:
                        given[name] = _resolved(need, cached, delivery, known, stack)
                return handler(*args, **given)

    injected.__signature__ = own.replace(parameters=left)  # type: ignore[attr-defined]
    return cast(H, injected)


def _plan(call: Callable[..., Any], above: tuple[Any, ...] = ()) -> _Plan:
    if call in above:
        raise BindingError(f"{name_of(call)}: depends on itself")
    try:
        hints = typing.get_type_hints(call, include_extras=True)
        parameters = inspect.signature(call).parameters
    except (TypeError, ValueError, NameError) as fault:
        raise BindingError(f"{name_of(call)}: its parameters cannot be read: {fault}") from fault
    needs, delivery = {}, None
    for name, each in parameters.items():
        hint = hints.get(name)
        marks = [*getattr(hint, "__metadata__", ()), each.default]
        mark = next((found for found in marks if isinstance(found, Depends)), None)
        if mark is not None:
            needs[name] = _plan(mark.dependency, (*above, call)), mark.use_cache
        elif hint is Delivery:
            delivery = name
        elif (
            above
            and each.default is each.empty
            and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ):
            raise BindingError(f"dependency {name_of(call)}: nothing to give to parameter {name!r}")
    return _Plan(call, needs, delivery)


def _any_delivery(plan: _Plan) -> bool:
    return plan.delivery is not None or any(_any_delivery(p) for p, _ in plan.needs.values())


def _resolved(
    plan: _Plan, cached: bool, delivery: Delivery | None, known: dict[Any, Any], stack: Any
) -> Any:
    if cached and plan.call in known:
        return known[plan.call]
    given = {n: _resolved(p, c, delivery, known, stack) for n, (p, c) in plan.needs.items()}
    found = _begun(plan, given, delivery, stack)
    known[plan.call] = found
    return found


async def _resolved_async(
    plan: _Plan, cached: bool, delivery: Delivery | None, known: dict[Any, Any], stack: Any
) -> Any:
    if cached and plan.call in known:
        return known[plan.call]
    given = {}
    for name, (need, own_cached) in plan.needs.items():
        given[name] = await _resolved_async(need, own_cached, delivery, known, stack)
    if inspect.isasyncgenfunction(plan.call):
        if plan.delivery is not None:
            given[plan.delivery] = delivery
        make = contextlib.asynccontextmanager(cast("Callable[..., AsyncIterator[Any]]", plan.call))
        found = await stack.enter_async_context(make(**given))
    else:
        found = _begun(plan, given, delivery, stack)
        if inspect.isawaitable(found):
            found = await found
    known[plan.call] = found
    return found


def _begun(plan: _Plan, given: dict[str, Any], delivery: Delivery | None, stack: Any) -> Any:
    if plan.delivery is not None:
        given[plan.delivery] = delivery
    if inspect.isgeneratorfunction(plan.call):
        make = contextlib.contextmanager(cast("Callable[..., Iterator[Any]]", plan.call))
        return stack.enter_context(make(**given))
    return plan.call(**given)
