"""Rows of an outbox: a publish as the columns of its row, and a row as the publish that its relay makes.

Headers and options are JSON, so that people and triggers can read and write them. Bytes within headers are
``{"$bytes": "00ff"}``; a name of a header table that begins with a dollar sign gets another one in front.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, cast

from messagebus._io.amqp.properties import encode_entry
from messagebus._io.hooks import add_headers
from messagebus._io.publish.calls import Outgoing
from messagebus.bodies import decode_json
from messagebus.clock import wall_ms, whole_ms
from messagebus.core.relay import Row
from messagebus.core.shards import SHARDS
from messagebus.destination import Destination, Queue, parse_destination
from messagebus.errors import MessageInvalid, WrongPayload
from messagebus.message import FIRST_HEADER, Given, Header, Message, Options, Payload
from messagebus.publisher import refuse_unconfirmed
from messagebus.stats import Durability

__all__ = ["ToPublish", "as_row", "core_row", "plain", "read_destination", "shard_of", "to_publish"]

_BYTES = "$bytes"
# Options of a row that are fields of a message.
_FIELDS = ("priority", "correlation_id", "reply_to", "type", "content_encoding", "app_id")


def shard_of(key: str, message_id: str) -> int:
    """Return the shard of a row: rows of one key are in one shard."""
    return zlib.crc32((key or message_id).encode()) % SHARDS


# Adding.
def as_row(
    destination: Destination, message: Message, options: Options, now_ms: int
) -> tuple[object, ...]:
    """Return the values of `table.COLUMNS`.

    message: with its id, checked. options: for its delay and redundancy.
    """
    told: dict[str, Any] = {
        name: value for name in _FIELDS if (value := getattr(message, name)) not in ("", None)
    }
    if message.ttl_s is not None:
        told["ttl_s"] = message.ttl_s
    if (due_ms := _due_ms(options, now_ms)) is not None:
        told["due_ms"] = due_ms
    if (redundant := options.get("redundant")) is not None:
        told["redundant"] = redundant
    if destination.durability is not Durability.FSYNC:
        told["durability"] = destination.durability.value
    if isinstance(destination, Queue) and destination.create:
        told["create"] = True
    if message.headers:
        try:
            encode_entry(message, message.message_id)
        except Exception as fault:  # an AMQP table cannot hold it
            raise MessageInvalid(f"headers cannot be encoded: {type(fault).__name__}") from fault
    return (
        message.message_id,
        str(destination),
        message.key,
        shard_of(message.key, message.message_id),
        message.content_type,
        json.dumps(plain(message.headers)) if message.headers else "{}",
        json.dumps(told) if told else "{}",
        message.body,
        now_ms,
    )


def read_publish(
    outgoing: Outgoing, destination: Destination | str, payload: Payload, given: Given
) -> tuple[Destination, Message]:
    """Check a publish as a publisher does; return its parts.

    Raises NameInvalid, MessageInvalid, ConfigError.
    """
    target, body, message = outgoing.read(destination, payload, given)
    refuse_unconfirmed(target)
    parsed = parse_destination(destination) if isinstance(destination, str) else destination
    return parsed, message or Message(body=body, content_type=target.content_type)


def _due_ms(options: Options, now_ms: int) -> int | None:
    if "deliver_after_s" in options:
        return now_ms + whole_ms(options["deliver_after_s"])
    at = options.get("deliver_at")
    if at is None:
        return None
    return whole_ms(at.timestamp() if isinstance(at, datetime) else at)


def plain(value: Any) -> Any:
    """Return headers, or a value in them, as JSON can hold it."""
    match value:
        case bytes():
            return {_BYTES: value.hex()}
        case Mapping():
            return {f"${k}" if k.startswith("$") else k: plain(v) for k, v in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return value


# Relaying.
class ToPublish(NamedTuple):
    """A row as its publish."""

    destination: Destination
    message: Message
    options: Options


def core_row(values: Sequence[Any]) -> Row:
    """Return the deciding part of a row as `Table.read` gives it."""
    attempts, body = values[3], values[9]
    size = 0 if isinstance(body, int | float) else len(body)  # SQLite keeps any type
    tries = int(attempts) if isinstance(attempts, int) else 0
    return Row(int(values[0]), int(values[1]), values[2], tries, size)


def to_publish(values: Sequence[Any]) -> ToPublish:
    """Return the publish of a row. Raises MessageInvalid, NameInvalid, WrongPayload: it was written by
    others.

    A time to live counts from when the row was added, or from when a delayed message is due.
    """
    _, _, key, _, message_id, destination, content_type, headers, options, body, created_ms = values
    found = _json(options)
    fields: dict[str, Any] = {name: found[name] for name in _FIELDS if name in found}
    kept: Options = {}
    if "redundant" in found:
        kept["redundant"] = found["redundant"]
    if "due_ms" in found:
        kept["deliver_at"] = found["due_ms"] / 1000
    if (ttl_s := found.get("ttl_s")) is not None:
        age_s = 0 if "due_ms" in found else max(0, wall_ms() - created_ms) / 1000
        fields["ttl_s"] = max(min(0.001, ttl_s), ttl_s - age_s)
    message = Message(
        body=body if type(body) is bytes else bytes(memoryview(body)),
        content_type=content_type,
        message_id=message_id,
        key=key,
        headers={} if headers == "{}" else cast(Mapping[str, Header], _original(_json(headers))),
        **fields,
    )
    parsed = read_destination(destination, found)
    if parsed.durability is Durability.NONE:
        raise MessageInvalid("durability none: nothing is confirmed")
    if not message_id:
        raise MessageInvalid("without an id: each try would be another message")
    return ToPublish(parsed, add_headers(message, {FIRST_HEADER: int(created_ms)}), kept)


def read_destination(text: str, options: Mapping[str, Any]) -> Destination:
    parsed = parse_destination(text)
    if "durability" in options:
        parsed = replace(parsed, durability=Durability(options["durability"]))
    if options.get("create") and isinstance(parsed, Queue):
        parsed = replace(parsed, create=True)
    return parsed


def _json(text: str) -> dict[str, Any]:
    if text == "{}":
        return {}
    found = decode_json(text.encode())
    if not isinstance(found, dict):
        raise WrongPayload("headers and options of a row are JSON objects")
    return found


def _original(value: Any) -> Any:
    match value:
        case dict():
            if value.keys() == {_BYTES}:
                return bytes.fromhex(value[_BYTES])
            return {
                k.removeprefix("$") if k.startswith("$$") else k: _original(v)
                for k, v in value.items()
            }
        case list():
            return [_original(each) for each in value]
        case _:
            return value
