"""The gateway's OpenAPI document: valid, and true for whatever requests come."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from messagebus.testing import MemoryBus
from messagebus_gateway.openapi import document
from tests.support.gateway import gateway_on

# pyproject.toml keeps it out of all other files.
pytest_plugins = ["schemathesis.pytest.plugin"]

# 10 in CI; by hand `GATEWAY_EXAMPLES=800`: more than 10,000 cases over all operations. With
# `GATEWAY_URL=http://127.0.0.1:8080` they are sent to a gateway that runs, which anybody may use.
EXAMPLES = int(os.environ.get("GATEWAY_EXAMPLES", "10"))
RUNNING = os.environ.get("GATEWAY_URL", "")
OPERATIONS = sum(
    method in ("get", "post", "put") for path in document()["paths"].values() for method in path
)


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


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a gateway that runs on a thread of its own, or of one that was named."""
    if RUNNING:
        yield RUNNING
        return
    bus = MemoryBus(brokers=2)
    found: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with gateway_on(bus) as served:
            found.append(served.gateway.url)
            begun.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert begun.wait(30)
    try:
        yield found[0]
    finally:
        ended.set()
        thread.join()


def test_the_document_is_openapi() -> None:
    validate(document())
    assert OPERATIONS > 15


def test_a_batch_of_events_is_what_the_document_says(address: str) -> None:
    event = document()["components"]["schemas"]["CloudEvent"]
    whole = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "made", "data": [1]}
    assert set(event["required"]) < set(whole)
    cases = [(whole, True), (whole | {"subject": "x", "sampled": True}, True), ({}, False)]
    cases += [(whole | {name: ""}, False) for name in event["required"]]
    cases += [(whole | {"NAME": "x"}, False), (whole | {"more": {}}, False)]
    for sent, is_right in cases:
        assert OAS31Validator(event).is_valid(sent) is is_right
        request = urllib.request.Request(
            f"{address}/v1/topics/orders/messages:batch",
            json.dumps([sent]).encode(),
            {"Content-Type": "application/cloudevents-batch+json", "MB-Client": "test"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status = answer.status
        except urllib.error.HTTPError as fault:
            status = fault.code
            fault.close()
        assert (status == 400) is not is_right, (sent, status)


def test_the_gateway_serves_this_document(address: str) -> None:
    with urllib.request.urlopen(f"{address}/v1/openapi.json", timeout=60) as answer:
        assert json.load(answer) == json.loads(json.dumps(document()))


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
