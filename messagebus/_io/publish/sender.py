"""The bytes of publishes on one link.

A `Sender` encodes what `core.pending` gives out, on one asyncio loop; the common part of publishes, with the
time stamp, once a second.
"""

from __future__ import annotations

import time
from collections.abc import Container
from typing import cast

from messagebus._io.amqp.batch import BATCH_TYPE, EntryShape, encode_entry
from messagebus._io.amqp.connection import Frames, Transport, UniformFrames
from messagebus._io.amqp.packed import packed
from messagebus._io.amqp.properties import ID_PLACE, bare_entry_shape, bare_shape
from messagebus._io.publish.publishes import Bundle, Publish, PublishCopy, Shape
from messagebus._io.publish.targets import Target
from messagebus.core.confirms import Batch
from messagebus.core.ends import Entry, Item


class Sender:
    """The encoder of all publishes of one link."""

    def __init__(self, transport: Transport, deflated: Container[str] = ()) -> None:
        """Create it. deflated: the destinations whose batches are compressed, with a checksum."""
        self._transport, self._deflated = transport, deflated
        self._frames: dict[str, Frames] = {}
        self._uniform: dict[tuple[Target, Shape | None], UniformFrames] = {}
        # Of this second, by content type and persistence: 500 topics have one.
        self._bare: dict[tuple[str, bool], Shape] = {}
        self._entries: dict[str, EntryShape] = {}
        self._stamp_s = 0

    def send(self, entries: list[Entry], broker: str, sent_ns: int) -> None:
        """Append all to the transport's output, in order. Raises pika's exceptions, on the slow path only."""
        stamp_s = int(time.time())
        if stamp_s != self._stamp_s:
            self._stamp_s = stamp_s
            self._uniform.clear()
            self._bare.clear()
        out, sent = self._transport.out, (broker, sent_ns, (broker,) if broker else ())
        run: list[Publish] = []  # of one target, with nothing but a body each
        for publish in entries:
            if type(publish) is not Publish:
                if isinstance(publish, PublishCopy):
                    publish.sent = sent
                    if publish.shape is not None:
                        self._send_copy(run, publish)
                        continue
                self._send_run(run)
                if isinstance(publish, PublishCopy):
                    properties = publish.properties or b""
                    self._frames_for(publish.target).add(out, properties, publish.body)
                else:
                    self._send_batch(publish, sent)
                continue
            publish.sent = sent
            if run and (publish.target is not run[0].target or publish.properties is not None):
                self._send_run(run)
            if publish.properties is None:
                run.append(publish)
            else:
                self._frames_for(publish.target).add(out, publish.properties, publish.body)
        self._send_run(run)

    def _send_copy(self, run: list[Publish], copy: PublishCopy) -> None:
        """Add a bare copy to the run, which has one target and one shape. No other publish has its target."""
        if run:
            first = run[0]
            if first.target is not copy.target or cast(PublishCopy, first).shape is not copy.shape:
                self._send_run(run)
        run.append(copy)

    def _send_run(self, run: list[Publish]) -> None:
        if run:
            first = run[0]
            shape = first.shape if isinstance(first, PublishCopy) else None
            self._uniform_for(first.target, shape).add(self._transport.out, run)
            run.clear()

    def _send_batch(
        self, batch: Item | Batch[Item], sent: tuple[str, int, tuple[str, ...]]
    ) -> None:
        parts: list[bytes] = []
        publishes = cast(Batch[Publish], batch).items
        for publish in publishes:
            publish.sent = sent
            if publish.properties is not None:
                encode_entry(parts, publish.properties, publish.body)
                continue
            shape = self._entry_shape(publish.target.content_type)
            if type(publish) is Bundle:
                shape.add(parts, publish.ids, publish.bodies)
            else:
                shape.add(parts, (publish.message_id,), (publish.body,))
        first = publishes[0]
        if first.destination in self._deflated:
            properties, body = packed(
                b"".join(parts),
                batch.message_id,
                self._stamp_s,
                persistent=first.target.confirms,
            )
            self._frames_for(first.target).add(self._transport.out, properties, body)
            return
        before, after = self._bare_for(BATCH_TYPE, first.target.confirms)
        its_id = batch.message_id.encode()  # an application's own may have another length
        properties = b"%b%c%b%b" % (before[:-1], len(its_id), its_id, after)
        self._frames_for(first.target).add(self._transport.out, properties, b"".join(parts))

    def _entry_shape(self, content_type: str) -> EntryShape:
        shape = self._entries.get(content_type)
        if shape is None:
            bare = bare_entry_shape(content_type)
            shape = self._entries[content_type] = EntryShape(bare, len(ID_PLACE))
        return shape

    def _uniform_for(self, target: Target, shape: Shape | None) -> UniformFrames:
        uniform = self._uniform.get((target, shape))
        if uniform is None:
            uniform = self._frames_for(target).uniform(
                shape or self._bare_for(target.content_type, target.confirms)
            )
            self._uniform[target, shape] = uniform
        return uniform

    def _bare_for(self, content_type: str, confirms: bool) -> Shape:
        key = content_type, confirms
        if (shape := self._bare.get(key)) is None:
            shape = self._bare[key] = bare_shape(content_type, self._stamp_s, persistent=confirms)
        return shape

    def _frames_for(self, target: Target) -> Frames:
        frames = self._frames.get(target.destination)
        if frames is None:
            address = target.address
            frames = self._frames[target.destination] = self._transport.frames(
                address.exchange, address.routing_key
            )
        return frames
