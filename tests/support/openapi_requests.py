"""Requests of all kinds, made from the gateway's OpenAPI document; `test_openapi.py` runs this file.

To make them takes five seconds. Of a file that pytest finds by its name each worker would make them.

    pytest tests/support/openapi_requests.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from messagebus.services.gateway.openapi import document
from tests.support.gateway import on_a_thread

# pyproject.toml keeps it out of all other files.
pytest_plugins = ["schemathesis.pytest.plugin"]

# 10 in CI; by hand `GATEWAY_EXAMPLES=800`: more than 10,000 cases over all operations. With
# `GATEWAY_URL=http://127.0.0.1:8080` they are sent to a gateway that runs, which anybody may use.
EXAMPLES = int(os.environ.get("GATEWAY_EXAMPLES", "10"))
RUNNING = os.environ.get("GATEWAY_URL", "")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a gateway that runs on a thread of its own, or of one that was named."""
    if RUNNING:
        yield RUNNING
        return
    with on_a_thread() as address:
        yield address


def is_no_fault_of_the_gateway(
    _context: schemathesis.CheckContext, response: schemathesis.Response, _case: object
) -> None:
    """Fail at a 500. A time limit of a millisecond is rightly answered by 504."""
    assert response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR


# Not that all requests of the document succeed: keys are used twice, and events must be events.
CHECKS = [
    is_no_fault_of_the_gateway,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@schemathesis.serializer("application/x-ndjson")
def as_lines(_context: schemathesis.SerializationContext, value: Any) -> bytes:
    """Return a text as it is; what should be one and is not, as JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="surrogatepass")


contract = schemathesis.openapi.from_dict(document(), config=SchemathesisConfig())
# A stream does not end by itself.
requests = contract.exclude(path_regex="/events$")


@requests.parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
def test_every_answer_is_in_the_document(case: schemathesis.Case[Any], address: str) -> None:
    """No status, content type or body that it does not say; never a 500."""
    if case.path.endswith("/pull") and isinstance(case.body, dict) and "wait_s" in case.body:
        case.body["wait_s"] = (
            0 if isinstance(case.body["wait_s"], int | float) else case.body["wait_s"]
        )
    elif case.path.endswith("/pull"):
        case.body = {"wait_s": 0}
    case.call_and_validate(base_url=address, timeout=60, checks=CHECKS)
