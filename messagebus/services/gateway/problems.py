"""Errors of requests as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from messagebus import (
    ConfigError,
    LoginRefused,
    MessageBusError,
    NameInvalid,
    Refused,
    TopologyMismatch,
    Unknown,
    Unroutable,
)
from messagebus.errors import ChannelRefused
from messagebus.numbers import read_number

MEDIA = "application/problem+json"
DOCS = "docs/guides/gateway.md#answers"
DOCS_OF_OUTCOMES = {
    "unknown": Unknown.docs,
    "refused": Refused.docs,
    "unroutable": Unroutable.docs,
}


class Problem(Exception):
    """Raised when a request ends with an error.

    outcome: of its message: "not sent", or that of the publish. retry: the same request may be sent again.
    docs: page and heading about it; by default that of the outcome, else the table of all answers.
    more: further members of the answer.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        outcome: str = "",
        retry: bool = False,
        message_id: str = "",
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        docs: str = "",
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.outcome = status, outcome
        told: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            "docs": docs or DOCS_OF_OUTCOMES.get(outcome, DOCS),
            "retry": retry,
        }
        if outcome:
            told["outcome"] = outcome
        if message_id:
            told["message_id"] = message_id
        self.body = told | more
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))

    def response(self) -> Response:
        return json_response(self.body, self.status, headers=self.headers, media_type=MEDIA)


def problem_of_fault(fault: MessageBusError) -> Problem:
    """Return the problem of a request that a fault of the bus, or of the request, has ended."""
    match fault:
        case LoginRefused():
            detail = "the bus refuses this login"
            return Problem(401, detail, outcome="not sent", docs=fault.docs)
        case ChannelRefused(code=HTTPStatus.FORBIDDEN):  # AMQP's number is the same
            return Problem(403, fault.reason, outcome="not sent", docs=fault.docs)
        case NameInvalid() | ConfigError():
            return Problem(400, str(fault), outcome="not sent", docs=fault.docs)
        case TopologyMismatch():
            return Problem(409, str(fault), docs=fault.docs)
    return Problem(503, str(fault), retry=True, retry_after_s=1, docs=fault.docs)


def json_response(
    value: Any,
    status: int = 200,
    *,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """Return a value as JSON in one line."""
    return Response(
        encoded(value), status, dict(headers) if headers else None, media_type=media_type
    )


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encoded(value: Any) -> bytes:
    """Return a value as JSON in one line; half of a pair, which some callers send, as its escape."""
    return _encode(value).encode(errors="backslashreplace")


def seconds(text: str, what: str, low: float, high: float) -> float:
    """Read a number of seconds. Raises Problem 400."""
    try:
        return read_number(text, low, high)
    except ValueError:
        told = f"{what} {text[:40]!r}: {low:g} to {high:g} seconds"
        raise Problem(400, told, outcome="not sent") from None
