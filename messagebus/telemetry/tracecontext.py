"""W3C trace context in headers, as it is: no spans are made, no package is needed.

A message keeps its ``traceparent`` and ``tracestate`` in every copy for a retry and in the parking queue,
because they are ordinary headers. `TraceContext` adds the rest: a message that a handler publishes belongs
to the trace of the delivery it handles. Applications with spans use `messagebus.telemetry.otel` instead.

Source: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token

from messagebus._io.hooks import add_headers
from messagebus.hooks import Hooks
from messagebus.message import Delivery, Header, Message

__all__ = ["TRACEPARENT", "TRACESTATE", "TraceContext", "is_traceparent", "trace_headers"]

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
# Version, trace, parent, flags; a later version may say more behind them.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)
_NONE: Mapping[str, Header] = {}
_handled: ContextVar[Mapping[str, Header]] = ContextVar("messagebus_trace", default=_NONE)


def is_traceparent(text: str) -> bool:
    """Return whether it is a valid ``traceparent``."""
    return _TRACEPARENT.fullmatch(text) is not None


def trace_headers(headers: Mapping[str, Header]) -> Mapping[str, Header]:
    """Return the headers of the trace context; empty without one or for an invalid one."""
    parent = headers.get(TRACEPARENT)
    if not isinstance(parent, str) or not is_traceparent(parent):
        return _NONE
    state = headers.get(TRACESTATE)
    if not isinstance(state, str) or not state:
        return {TRACEPARENT: parent}
    return {TRACEPARENT: parent, TRACESTATE: state}


class TraceContext(Hooks):
    """Hooks that give a handler's messages the trace context of its delivery, unless they have one."""

    __slots__ = ()

    def publishing(self, destination: str, message: Message) -> Message:
        found = _handled.get()
        if not found or TRACEPARENT in message.headers:
            return message
        return add_headers(message, found)

    def handling(self, delivery: Delivery) -> AbstractContextManager[None]:
        return _Carrying(delivery)

    def handling_many(self, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        """Leave the context of a batch handler empty: its publishes belong to no single message."""
        return nullcontext()


class _Carrying:
    __slots__ = ("_delivery", "_token")

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def __enter__(self) -> None:
        found = trace_headers(self._delivery.message.headers)
        self._token: Token[Mapping[str, Header]] = _handled.set(found)

    def __exit__(self, *_: object) -> None:
        _handled.reset(self._token)
