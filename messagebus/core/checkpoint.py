"""Checkpoints of a replay: how far each broker's stream was read, and how a gap is noticed.

An offset alone proves nothing: a broker that loses its power may lose the last messages of a stream, and give
their offsets to other messages; a stream that is deleted and made again begins at 0. So a position holds the
id of its message too. A replay that goes on reads that message once more and compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FORM = 1
TEXT_MAX = 1_000
OFFSET_MAX = (1 << 63) - 1


class Position(NamedTuple):
    """The last message that was read from one broker's stream.

    offset: of the stored message, from 0. part: its place in a batch, from 1; 0 alone. ms: time of its
    publish, in ms since 1970; 0 where it does not say. One without an id is not compared.
    """

    offset: int
    part: int
    message_id: str
    ms: int


def behind(offset: int) -> Position:
    """Return the position behind a stored message, whatever that is; -1: before the first of all."""
    return Position(offset, OFFSET_MAX, "", 0)


class Gap(NamedTuple):
    """The reason why a stream does not go on behind a position. lost: count of messages, None: unknown."""

    reason: str
    lost: int | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a replay of one topic. str() is JSON; `parse` reads it.

    topic: its name. positions: broker -> the last message that was read from its stream.
    """

    topic: str
    positions: Mapping[str, Position] = field(default_factory=dict)

    def __str__(self) -> str:
        positions = {broker: list(each) for broker, each in sorted(self.positions.items())}
        return json.dumps(
            {"replay": FORM, "topic": self.topic, "brokers": positions}, separators=(",", ":")
        )

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read the output of str(). Raises ValueError, one line."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as fault:
            raise ValueError(f"not a checkpoint: {fault}") from None
        if not isinstance(found, dict) or found.get("replay") != FORM:
            raise ValueError(f'not a checkpoint: "replay": {FORM} is missing')
        topic, brokers = found.get("topic"), found.get("brokers")
        if not isinstance(topic, str) or not isinstance(brokers, dict):
            raise ValueError("not a checkpoint: it has a topic and brokers")
        return cls(topic, {broker: _position(broker, each) for broker, each in brokers.items()})


def _position(broker: str, value: Any) -> Position:
    match value:
        case [int(offset), int(part), str(message_id), int(ms)] if (
            bool not in map(type, value)
            and (0 <= offset <= OFFSET_MAX or (offset == -1 and not message_id))
            and 0 <= part <= OFFSET_MAX
            and 0 <= ms <= OFFSET_MAX
            and len(message_id) <= TEXT_MAX
        ):
            return Position(offset, part, message_id, ms)
    raise ValueError(f"not a checkpoint: {broker[:TEXT_MAX]!r} needs offset, part, id and ms")


def gap_behind(position: Position, first: int, end: int) -> Gap | None:
    """Return why a stream with these offsets has no message at a position; None: read it, and compare.

    first: offset of its oldest message. end: offset of its next message, equal to first where it has none.
    """
    if position.offset >= end:
        return Gap(
            f"it ends at offset {end}, before {position.offset}: it lost its end, or is another one"
        )
    lost = first - position.offset - 1
    if position.offset < first and (lost or position.message_id):
        return Gap(f"it begins at offset {first}: older messages were dropped", lost)
    return None


def gap_at(position: Position, message_id: str) -> Gap | None:
    """Return why the message at the offset of a position is not the one that was read; None: it is."""
    if message_id == position.message_id or not position.message_id:
        return None
    return Gap(
        f"another message is at offset {position.offset}: it lost its end, or is another one"
    )
