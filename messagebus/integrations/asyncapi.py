"""AsyncAPI 3.0 document of an application, made from its handlers and its typed topics.

``python -m messagebus.integrations.asyncapi shop:app`` prints it as JSON.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import typing
from collections.abc import Iterable
from typing import Any

import msgspec

from messagebus import App, Delivery
from messagebus.integrations.topics import Topic

__all__ = ["document"]

REFERENCES = "#/components/schemas/{name}"


def document(
    app: App, *, title: str, version: str, publishes: Iterable[Topic[Any]] = (), host: str = ""
) -> dict[str, Any]:
    """Return the document as a dictionary.

    publishes: topics that the application publishes to. host: of the server, "" for none. Types without a
    JSON schema (protobuf, your own codecs) are described by their name.
    """
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for source, function in app.functions.items():
        name = source.partition("/")[0]
        message = _channel(channels, schemas, name, source, _payload_of(function))
        operations[f"receive {source}"] = {
            "action": "receive",
            "title": source,
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [{"$ref": f"#/channels/{name}/messages/{message}"}],
            **({"description": told} if (told := inspect.getdoc(function)) else {}),
        }
    for topic in publishes:
        name = topic.name.name
        message = _channel(channels, schemas, name, name, topic.type)
        operations[f"send {name}"] = {
            "action": "send",
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [{"$ref": f"#/channels/{name}/messages/{message}"}],
        }
    found: dict[str, Any] = {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": {_key(name): each for name, each in operations.items()},
        "components": {"schemas": schemas},
    }
    if host:
        found["servers"] = {"bus": {"host": host, "protocol": "amqp"}}
    return found


def _channel(
    channels: dict[str, Any], schemas: dict[str, Any], name: str, source: str, payload: Any
) -> str:
    """Add a message to its channel. Returns the message's name."""
    is_queue = source.startswith("queue:")
    place = f"mb.queue/{name.removeprefix('queue:')}" if is_queue else f"mb.topic/{name}"
    channel = channels.setdefault(
        name,
        {
            "address": place,
            "messages": {},
            "bindings": {"amqp": {"is": "queue" if is_queue else "routingKey"}},
        },
    )
    message = _key(getattr(payload, "__name__", str(payload)))
    channel["messages"][message] = {"name": message, "payload": _schema(payload, schemas)}
    return message


def _key(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name)


def _payload_of(function: Any) -> Any:
    """Return the annotation of a handler's payload; bytes for one that takes the delivery alone."""
    hints = typing.get_type_hints(function)
    for name in inspect.signature(function).parameters:
        hint = hints.get(name, Any)
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is list else hint
        if inner is not Delivery:
            return hint
    return bytes


def _schema(payload: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if payload is bytes:
        return {}
    if hasattr(payload, "model_json_schema"):
        found = payload.model_json_schema(ref_template=REFERENCES.replace("{name}", "{model}"))
        schemas.update(found.pop("$defs", {}))
        schemas[payload.__name__] = found
        return {"$ref": REFERENCES.format(name=payload.__name__)}
    try:
        (schema,), parts = msgspec.json.schema_components([payload], ref_template=REFERENCES)
    except (TypeError, RuntimeError):
        return {"description": getattr(payload, "__qualname__", str(payload))}
    schemas.update(parts)
    return dict(schema)


def main(argv: list[str]) -> int:
    """Print the document of ``module:app``. Returns the exit code."""
    if len(argv) != 1 or ":" not in argv[0]:
        print("usage: python -m messagebus.integrations.asyncapi MODULE:APP", file=sys.stderr)
        return 2
    module, _, name = argv[0].partition(":")
    sys.path.insert(0, "")
    app = getattr(importlib.import_module(module), name)
    print(json.dumps(document(app, title=module, version="0"), indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
