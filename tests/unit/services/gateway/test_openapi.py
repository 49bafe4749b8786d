"""The gateway's OpenAPI document: valid, and true for whatever requests come."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from messagebus.services.gateway.openapi import document
from tests.support.gateway import on_a_thread

REQUESTS = Path(__file__).parents[3] / "support" / "openapi_requests.py"
OPERATIONS = [
    path
    for path, methods in document()["paths"].items()
    for method in methods
    if method in ("get", "post", "put", "delete")
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with on_a_thread() as address:
        yield address


def test_the_document_is_openapi() -> None:
    validate(document())
    assert len(OPERATIONS) > 15


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


def test_every_answer_is_in_the_document() -> None:
    """No status, content type or body that it does not say; never a 500."""
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(REQUESTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout
    ending = [path for path in OPERATIONS if not path.endswith("/events")]
    assert f"{len(ending)} passed" in made.stdout
