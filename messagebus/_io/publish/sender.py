"""Encoding of publishes on one link: from the outbox to the link's pipe.

Runs on one asyncio loop. The common part of publishes, with the time stamp, is encoded once a second for
each shape.
"""

from __future__ import annotations

import time
from typing import cast

from messagebus._io.amqp.batch import BATCH_TYPE, EntryShape, encode_entry
from messagebus._io.amqp.pipe import Alike, Frames, Pipe
from messagebus._io.amqp.properties import A_MADE_ID, bare_entry_shape, bare_shape, encode
from messagebus._io.publish.publishes import Bundle, Shape, Ticket
from messagebus.core.confirms import Batch
from messagebus.core.outbox import Entry, Item
from messagebus.message import Message

__all__ = ["Sender"]


class Sender:
    """The encoder of all publishes of one link."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._frames: dict[str, Frames] = {}
        self._alike: dict[Shape, Alike] = {}
        self._entries: dict[str, EntryShape] = {}
        self._stamp_s = 0

    def send(self, entries: list[Entry], broker: str, sent_ns: int) -> None:
        """Append all to the pipe's output, in order. Raises pika's exceptions, on the slow path only."""
        stamp_s = int(time.time())
        if stamp_s != self._stamp_s:
            self._stamp_s = stamp_s
            self._alike.clear()
        out, sent = self._pipe.out, (broker, sent_ns)
        run: list[Ticket] = []  # of one shape, with nothing but a body each
        for ticket in entries:
            if type(ticket) is not Ticket:
                self._send_run(run)
                self._send_batch(ticket, sent)
                continue
            ticket.sent = sent
            if run and (ticket.shape is not run[0].shape or ticket.properties is not None):
                self._send_run(run)
            if ticket.properties is None:
                run.append(ticket)
            else:
                self._frames_for(ticket.shape).add(out, ticket.properties, ticket.body)
        self._send_run(run)

    def _send_run(self, run: list[Ticket]) -> None:
        if run:
            self._alike_for(run[0].shape).add(self._pipe.out, run)
            run.clear()

    def _send_batch(self, batch: Item | Batch[Item], sent: tuple[str, int]) -> None:
        parts: list[bytes] = []
        tickets = cast(Batch[Ticket], batch).items
        for ticket in tickets:
            ticket.sent = sent
            if ticket.properties is not None:
                encode_entry(parts, ticket.properties, ticket.body)
                continue
            shape = self._entry_shape(ticket.shape.content_type)
            if type(ticket) is Bundle:
                for message_id, body in zip(ticket.ids, ticket.bodies, strict=True):
                    shape.add(parts, message_id.encode(), body)
            else:
                shape.add(parts, ticket.message_id.encode(), ticket.body)
        first = tickets[0]
        around = Message(body=b"", content_type=BATCH_TYPE)
        properties = encode(
            around, batch.message_id, self._stamp_s, persistent=first.shape.confirms
        )
        self._frames_for(first.shape).add(self._pipe.out, properties, b"".join(parts))

    def _entry_shape(self, content_type: str) -> EntryShape:
        shape = self._entries.get(content_type)
        if shape is None:
            bare = bare_entry_shape(content_type)
            shape = self._entries[content_type] = EntryShape(bare, len(A_MADE_ID))
        return shape

    def _alike_for(self, shape: Shape) -> Alike:
        alike = self._alike.get(shape)
        if alike is None:
            properties = bare_shape(shape.content_type, self._stamp_s, persistent=shape.confirms)
            alike = self._alike[shape] = self._frames_for(shape).alike(properties)
        return alike

    def _frames_for(self, shape: Shape) -> Frames:
        frames = self._frames.get(shape.lane)
        if frames is None:
            address = shape.address
            frames = self._frames[shape.lane] = self._pipe.frames(
                address.exchange, address.routing_key
            )
        return frames
