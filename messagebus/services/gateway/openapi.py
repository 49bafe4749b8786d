"""The contract as OpenAPI 3.1, served at /v1/openapi.json. Tests run it against the gateway."""

from __future__ import annotations

import functools
from typing import Any

from messagebus.envelope import FIELDS_OF_MESSAGE

Json = dict[str, Any]

NAME: Json = {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]*$", "maxLength": 120}
KEY: Json = {"type": "string", "pattern": "^[A-Za-z0-9._:-]+$", "minLength": 1, "maxLength": 128}
TEXT: Json = {"type": "string"}
PROBLEM = "application/problem+json"
OUTCOMES = ["confirmed", "accepted", "unknown", "refused", "unroutable", "not sent"]
# Of every request; 404 of a publish: nobody subscribes.
COMMON = {
    400: "The request is wrong; nothing was done.",
    401: "No login, or the login is refused.",
    403: "This principal may not.",
    429: "Too many, or too fast: see Retry-After.",
    503: "Not now: no broker, no room, or this gateway ends. See Retry-After and `outcome`.",
}
OF_SOURCES = {
    404: "It was never declared, and this principal may not.",
    409: "Its topic has partitions, and it keeps their order.",
}
OF_PUBLISHES = {
    404: "No such topic or queue, or no subscription.",
    413: "A body or batch over its bound.",
    422: "The key was used for another message.",
    504: "No answer: it may be stored or not. Send it again with the same key.",
}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Json, *required: str) -> Json:
    found: Json = {"type": "object", "properties": properties}
    return found | ({"required": list(required)} if required else {})


def _number(low: float, high: float, **more: Any) -> Json:
    return {"type": "number", "minimum": low, "maximum": high, **more}


def _whole(low: int, high: int, **more: Any) -> Json:
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def _parameter(where: str, name: str, schema: Json, what: str = "") -> Json:
    found: Json = {"in": where, "name": name, "schema": schema, "required": where == "path"}
    return found | ({"description": what} if what else {})


def _answers(good: dict[int, tuple[str, Json]], *problems: dict[int, str]) -> Json:
    answers: Json = {
        str(status): {"description": what, "content": {"application/json": {"schema": schema}}}
        for status, (what, schema) in good.items()
    }
    for status, what in {k: v for each in problems for k, v in each.items()}.items():
        answers[str(status)] = {
            "description": what,
            "content": {PROBLEM: {"schema": _ref("Problem")}},
        }
    return answers


_MESSAGE_HEADERS = [
    _parameter("header", "Idempotency-Key", KEY, "The message's id; the same one comes once."),
    _parameter(
        "header", "MB-Key", {"type": "string", "maxLength": 60}, "Messages of a key keep order."
    ),
    _parameter("header", "MB-Priority", _whole(0, 9)),
    _parameter("header", "MB-Type", {"type": "string", "maxLength": 60}),
    _parameter("header", "MB-Correlation-Id", {"type": "string", "maxLength": 60}),
    _parameter("header", "MB-Reply-To", {"type": "string", "maxLength": 60}),
    _parameter("header", "MB-TTL-S", _number(0, 4_294_967)),
    _parameter("header", "MB-Delay-S", _number(0, 604_800), "Not before that; rounded up."),
    _parameter("header", "MB-Durability", {"enum": ["none", "confirmed"]}),
    _parameter("header", "MB-Timeout-S", _number(0.001, 30), "Of the publish; 5 if not said."),
]
_TIMEOUT = [_MESSAGE_HEADERS[-1]]


def _publish() -> Json:
    return {
        "summary": "Publish the body as one message; 201 means confirmed.",
        "description": "Further headers: MB-Header-NAME, traceparent, tracestate, baggage, ce-*.",
        "parameters": _MESSAGE_HEADERS,
        "requestBody": {"content": {"application/octet-stream": {"schema": TEXT}}},
        "responses": _answers(
            {
                201: ("Confirmed by a broker.", _ref("Published")),
                202: ("Accepted; no confirm was asked for.", _ref("Published")),
            },
            COMMON,
            OF_PUBLISHES,
        ),
    }


def _batch() -> Json:
    whole = _parameter("query", "whole", {"enum": ["0", "1"]}, "Check all before anything is sent.")
    events = {"type": "array", "minItems": 1, "items": _ref("CloudEvent")}
    return {
        "summary": "Publish many messages; 201 means that all are confirmed.",
        "description": "A line of NDJSON is an Envelope; at most 10,000. Any other end has the same list.",
        "parameters": [*_TIMEOUT, whole],
        "requestBody": {
            "required": True,
            "content": {
                "application/x-ndjson": {"schema": TEXT},
                "application/cloudevents-batch+json": {"schema": events},
            },
        },
        "responses": _answers(
            {201: ("All are confirmed.", _ref("Batch"))},
            COMMON,
            OF_PUBLISHES,
            {415: "NDJSON or a batch of CloudEvents is wanted."},
        ),
    }


def _pull() -> Json:
    asked = _object(
        {
            "max": _whole(1, 1_000, default=1),
            "wait_s": _number(0, 60, default=20),
            "lease_s": _number(1, 900, default=60),
            "bytes_max": _whole(1, 64 << 20, default=4 << 20),
        }
    ) | {"additionalProperties": False}
    deliveries = {"type": "array", "items": _ref("Delivery")}
    return {
        "summary": "Wait for deliveries and lease them.",
        "description": "With Accept: application/cloudevents+json each delivery has an `event`.",
        "requestBody": {"content": {"application/json": {"schema": asked}}},
        "responses": _answers(
            {
                200: (
                    "Deliveries; none after wait_s.",
                    _object({"deliveries": deliveries}, "deliveries"),
                )
            },
            COMMON,
            OF_SOURCES,
            {413: "A body over its bound."},
        ),
    }


def _events() -> Json:
    answers = _answers({}, COMMON, OF_SOURCES)
    answers["200"] = {
        "description": "Server-sent events; `id` is the lease, `data` a Delivery.",
        "content": {"text/event-stream": {"schema": TEXT}},
    }
    return {
        "summary": "Stream deliveries; answer them by /v1/leases.",
        "parameters": [
            _parameter("query", "in_flight", _whole(1, 1_000), "Unanswered at once; 100."),
            _parameter("query", "lease_s", _number(1, 900)),
            _parameter("query", "ack", {"enum": ["sent"]}, "Acked when written: at most once."),
        ],
        "responses": answers,
    }


def _answer(what: str) -> Json:
    of: dict[str, Json] = {
        "retry": {"after_s": _number(0, 604_800), "reason": TEXT},
        "park": {"reason": TEXT},
        "extend": {"lease_s": _number(1, 900)},
    }
    leases = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 10_000}
    asked = _object({"leases": leases, **of.get(what, {})}, "leases") | {
        "additionalProperties": False
    }
    found: Json = {
        "summary": f"Answer leases: {what}.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": _answers(
            {200: ("All are done.", _ref("Answered"))},
            COMMON,
            {409: "Some are stale or unknown; the others are done.", 413: "A body over its bound."},
        ),
    }
    if what == "ack":
        confirmed = _parameter(
            "query", "confirmed", {"enum": ["true"]}, "Wait until brokers have it."
        )
        found["parameters"] = [confirmed]
    return found


def _declare() -> Json:
    made = _object({"name": TEXT, "missing": {"type": "object"}}, "name", "missing")
    return {
        "summary": "Make it exist on every broker.",
        "responses": _answers(
            {200: ("It is on all brokers.", made), 202: ("It is not, on those missing.", made)},
            COMMON,
            {409: "It exists with other options."},
        ),
    }


def _schemas() -> Json:
    return {
        "Problem": _problem_schema(),
        "Published": _published_schema(),
        "Envelope": _envelope_schema(),
        "CloudEvent": _cloud_event_schema(),
        "Batch": _batch_schema(),
        "Delivery": _delivery_schema(),
        "Answered": _answered_schema(),
    }


def _problem_schema() -> Json:
    return _object(
        {
            **dict.fromkeys(("type", "title", "detail", "message_id"), TEXT),
            "docs": TEXT | {"description": "Page and heading with cause and remedy."},
            "status": _whole(400, 599),
            "outcome": {"enum": OUTCOMES},
            "retry": {"type": "boolean"},
            "line": _whole(1, 10_001),
        },
        "type",
        "title",
        "status",
        "detail",
        "docs",
        "retry",
    )


def _published_schema() -> Json:
    known = {"id": TEXT, "outcome": {"enum": OUTCOMES}, "broker": TEXT}
    return _object(known, "id", "outcome")


def _batch_schema() -> Json:
    messages = {"type": "array", "items": _ref("Published")}
    return _object({"confirmed": _whole(0, 10_000), "messages": messages}, "confirmed", "messages")


def _envelope_schema() -> Json:
    return _object(
        {
            "id": KEY,
            **dict.fromkeys(FIELDS_OF_MESSAGE, TEXT),
            "priority": _whole(0, 9),
            "ttl_s": _number(0, 4_294_967),
            "delay_s": _number(0, 604_800),
            "headers": {"type": "object"},
            "body": TEXT,
            "body_base64": TEXT,
        }
    )


def _cloud_event_schema() -> Json:
    some = {"type": "string", "minLength": 1}
    return {
        "type": "object",
        "properties": {
            **{"specversion": {"const": "1.0"}, "id": some, "source": some, "type": some},
            **{"data": {}, "data_base64": TEXT, "datacontenttype": TEXT},
        },
        "required": ["specversion", "id", "source", "type"],
        "propertyNames": {"pattern": "^([a-z0-9]+|data_base64)$"},
        "additionalProperties": {"type": ["string", "boolean"]},
    }


def _delivery_schema() -> Json:
    return _object(
        {
            "id": TEXT,
            "lease": TEXT,
            "lease_until": {"type": "string", "format": "date-time"},
            "broker": TEXT,
            "redelivered": {"type": "boolean"},
            "attempt": _whole(1, 1_000_000),
            "event": {"type": "object"},
            "key": TEXT,
            "content_type": TEXT,
            "headers": {"type": "object"},
            "body": TEXT,
            "body_base64": TEXT,
        },
        "lease",
    )


def _answered_schema() -> Json:
    answer = {"enum": ["done", "answered", "stale", "unknown", "away"]}
    leases = {"type": "array", "items": _object({"lease": TEXT, "answer": answer}, "lease")}
    return _object({"done": _whole(0, 10_000), "leases": leases}, "done", "leases")


@functools.cache
def document() -> Json:
    """Return the document. Never changed by callers."""

    def path(given: str, **operations: Json) -> Json:
        names = [each.split("}")[0] for each in given.split("{")[1:]]
        return {"parameters": [_parameter("path", each, NAME) for each in names], **operations}

    topic, queue = "/v1/topics/{topic}", "/v1/queues/{queue}"
    subscription = "/v1/subscriptions/{topic}/{subscription}"
    paths = {
        **{f"{each}/messages": path(each, post=_publish()) for each in (topic, queue)},
        **{f"{each}/messages:batch": path(each, post=_batch()) for each in (topic, queue)},
        **{f"{each}/pull": path(each, post=_pull()) for each in (subscription, queue)},
        **{f"{each}/events": path(each, get=_events()) for each in (subscription, queue)},
        **{each: path(each, put=_declare()) for each in (topic, subscription, queue)},
        **{
            f"/v1/leases/{what}": {"post": _answer(what)}
            for what in ("ack", "release", "retry", "park", "extend")
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "messagebus gateway",
            "version": "1.0",
            "description": "A 2xx means: every message of the request is confirmed.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "login": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{"token": []}, {"login": []}, {}],
    }
