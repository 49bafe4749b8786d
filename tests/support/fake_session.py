"""Session of a fake broker with one client: handshake, frames, channels. See `fake_amqp`."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any

import pika
import pika.spec as spec

if TYPE_CHECKING:
    from tests.support.fake_amqp import FakeRabbit


METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
HEAD = Struct(">BHI")
CONTENT = Struct(">HHQ")
FRAME_END = 0xCE
PROTOCOL = b"AMQP\x00\x00\x09\x01"
BASIC_CLASS = 60
# Buffer of a reader that has stopped: the less the kernel takes, the sooner a client notices.
RECEIVE_BUFFER_BYTES = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Message as it lies in a queue.

    properties: flags and list as they are on the wire. size: announced in the header, None for the
    body's own. frame_end: of its last frame.
    """

    body: bytes = b""
    exchange: str = ""
    routing_key: str = ""
    properties: bytes = b"\x00\x00"
    size: int | None = None
    frame_end: int = FRAME_END
    redelivered: bool = False

    @property
    def decoded(self) -> pika.BasicProperties:
        return pika.BasicProperties().decode(self.properties)


@dataclass(eq=False)
class FakeQueue:
    """Queue of a fake broker. arguments: as declared. messages: not delivered, or given back."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    messages: deque[Stored] = field(default_factory=deque)
    consumers: deque[Consumer] = field(default_factory=deque)


@dataclass(eq=False)
class Consumer:
    channel: Channel
    tag: str
    queue: FakeQueue
    no_ack: bool
    prefetch: int
    owed: int = 0


class Connection(asyncio.Protocol):
    """Connection of one client: the handshake, frames in and out."""

    transport: asyncio.Transport

    def __init__(self, rabbit: FakeRabbit) -> None:
        self.rabbit = rabbit
        self.channels: dict[int, Channel] = {}
        self.exclusive: list[str] = []
        self.frame_max = rabbit.manners.frame_max
        self.is_open = False
        self.ended = asyncio.Event()
        self._buffer = bytearray()
        self._greeted = self._closing = self._mute = False
        self._heartbeat_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # Asyncio's.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.rabbit.accepted += 1
        self.rabbit.clients.add(self)
        self._step("connect")

    def data_received(self, data: bytes) -> None:
        if self._mute:
            return
        self._buffer += data
        if not self._greeted and len(self._buffer) >= len(PROTOCOL):
            del self._buffer[: len(PROTOCOL)]
            self._greeted = True
            self._start()
        while len(self._buffer) >= HEAD.size and not self._mute:
            kind, number, size = HEAD.unpack_from(self._buffer)
            if len(self._buffer) < HEAD.size + size + 1:
                break
            payload = bytes(self._buffer[HEAD.size : HEAD.size + size])
            del self._buffer[: HEAD.size + size + 1]
            self._frame(kind, number, payload)
        for channel in self.channels.values():
            channel.confirm()

    def connection_lost(self, why: Exception | None) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        for channel in list(self.channels.values()):
            channel.gone()
        for queue in self.exclusive:
            if queue in self.rabbit.queues:
                self.rabbit.remove(queue)
        self.rabbit.clients.discard(self)
        self.ended.set()

    # Handshake.
    def _step(self, step: str) -> None:
        self._mute = self.rabbit.manners.silent_after == step

    def _start(self) -> None:
        manners = self.rabbit.manners
        name = self.rabbit.name if manners.cluster_name is None else manners.cluster_name
        capabilities = dict.fromkeys(
            (
                "publisher_confirms",
                "basic.nack",
                "consumer_cancel_notify",
                "connection.blocked",
                "authentication_failure_close",
                "exchange_exchange_bindings",
            ),
            True,
        )
        properties: dict[str, Any] = {"product": "fake", "capabilities": capabilities}
        if name:
            properties["cluster_name"] = name
        self.send(0, spec.Connection.Start(0, 9, properties, "PLAIN", "en_US"))
        self._step("start")

    def _on_start_ok(self, method: Any) -> None:
        response = method.response
        raw = response if isinstance(response, bytes) else response.encode("latin-1")
        _, user, password = raw.decode("utf-8", "replace").split("\0", 2)
        manners = self.rabbit.manners
        self.rabbit.logins += 1
        if manners.passwords is not None and manners.passwords.get(user) != password:
            self.rabbit.refused += 1
            self.close(
                403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
            )
            return
        tune = spec.Connection.Tune(manners.channel_max, manners.frame_max, manners.heartbeat_s)
        self.send(0, tune)
        self._step("tune")

    def _on_tune_ok(self, method: Any) -> None:
        self.frame_max = method.frame_max or self.frame_max
        self._heartbeat_s = method.heartbeat / 2
        if self._heartbeat_s:
            self._beat()

    def _on_open(self, method: Any) -> None:
        if method.virtual_host not in self.rabbit.manners.vhosts:
            self.close(530, f"NOT_ALLOWED - vhost {method.virtual_host} not found")
            return
        self.is_open = True
        self.send(0, spec.Connection.OpenOk())
        if not self.rabbit.manners.reads:
            self.stop_reading()
        self._step("open")

    def _beat(self) -> None:
        if not self._mute:
            self.write(HEAD.pack(HEARTBEAT, 0, 0) + b"\xce")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._heartbeat_s, self._beat)

    # Frames.
    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == HEARTBEAT or (self._closing and number):
            return
        method = _decoded(payload) if kind == METHOD else None
        if number == 0:
            self._on_zero(method)
        elif isinstance(method, spec.Channel.Open):
            self._open_channel(number)
        elif (channel := self.channels.get(number)) is None:
            self.close(504, "CHANNEL_ERROR - expected 'channel.open'")
        elif kind == METHOD:
            channel.on_method(method)
        else:
            channel.on_content(kind, payload)

    def _on_zero(self, method: Any) -> None:
        match method:
            case spec.Connection.StartOk():
                self._on_start_ok(method)
            case spec.Connection.TuneOk():
                self._on_tune_ok(method)
            case spec.Connection.Open():
                self._on_open(method)
            case spec.Connection.Close():
                self.send(0, spec.Connection.CloseOk())
                self.transport.close()
            case spec.Connection.CloseOk():
                self.transport.close()
            case _:
                self.close(540, f"NOT_IMPLEMENTED - {method!r}")

    def _open_channel(self, number: int) -> None:
        limit = self.rabbit.manners.channel_max
        if limit and (number > limit or len(self.channels) >= limit):
            self.close(530, f"NOT_ALLOWED - number of channels opened has reached {limit}")
            return
        self.channels[number] = Channel(self, number)
        self.send(number, spec.Channel.OpenOk())

    def send(self, channel: int, method: Any) -> None:
        self.write(_method_frame(channel, method))

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing() and not self._mute:
            self.transport.write(data)

    def close(self, code: int, text: str) -> None:
        """Send Connection.Close; later data on channels is ignored."""
        self._closing = True
        self.send(0, spec.Connection.Close(code, text, 0, 0))

    def drop(self) -> None:
        """Reset the connection: RST, not FIN."""
        plug: socket.socket | None = self.transport.get_extra_info("socket")
        # None under TLS once the client has hung up: `connection_lost` is on its way.
        if plug is not None:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def mute(self) -> None:
        self._mute = True

    def stop_reading(self) -> None:
        plug: socket.socket = self.transport.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self.transport.pause_reading()


class Channel:
    """Channel of one client: its requests, publishes and unanswered deliveries."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection, self.number, self.rabbit = connection, number, connection.rabbit
        self.consumers: dict[str, Consumer] = {}
        self.owed: dict[int, tuple[Consumer | None, FakeQueue, Stored]] = {}
        self._prefetch = self._tag = self._published = self._confirmed = 0
        self._confirms = self._closing = False
        self._refused: set[int] = set()
        self._publish: Any = None
        self._properties, self._size, self._body = b"", 0, bytearray()

    # Out.
    def send(self, method: Any) -> None:
        self.connection.send(self.number, method)

    def close(self, code: int, text: str) -> None:
        """Send Channel.Close; unanswered deliveries go back."""
        self._closing = True
        self.gone()
        self.send(spec.Channel.Close(code, text, 0, 0))

    def gone(self) -> None:
        """Remove all consumers, and put every unanswered delivery back in its place."""
        for consumer_tag in list(self.consumers):
            self._drop_consumer(consumer_tag)
        queues = {queue for _, queue, _ in self.owed.values()}
        for tag in sorted(self.owed, reverse=True):
            self._requeue(tag)
        for queue in queues:
            self.rabbit.deliver(queue)

    def deliver(self, consumer: Consumer, stored: Stored) -> None:
        self._tag += 1
        if not consumer.no_ack:
            consumer.owed += 1
            self.owed[self._tag] = (consumer, consumer.queue, stored)
        method = spec.Basic.Deliver(
            consumer.tag, self._tag, stored.redelivered, stored.exchange, stored.routing_key
        )
        self._send_content(method, stored)

    def _send_content(self, method: Any, stored: Stored) -> None:
        size = len(stored.body) if stored.size is None else stored.size
        header = CONTENT.pack(BASIC_CLASS, 0, size) + stored.properties
        frames = [_method_frame(self.number, method), _frame(HEADER, self.number, header)]
        step = self.connection.frame_max - HEAD.size - 1
        for start in range(0, len(stored.body), step):
            frames.append(_frame(BODY, self.number, stored.body[start : start + step]))
        data = bytearray(b"".join(frames))
        data[-1] = stored.frame_end
        self.connection.write(bytes(data))

    def confirm(self) -> None:
        """Answer the publishes since the last time, as `Manners.confirms` says."""
        first, last = self._confirmed + 1, self._published
        how = self.rabbit.manners.confirms
        if not self._confirms or self._closing or last < first or how == "never":
            return
        if self.rabbit.blocked:  # as a broker in an alarm, which reads nothing from it any more
            self.connection.send(0, spec.Connection.Blocked(self.rabbit.blocked))
            return
        self._confirmed = last
        if how == "multiple":
            self.send(spec.Basic.Ack(last, True))
        elif how == "nack":
            self.send(spec.Basic.Nack(last, True))
        else:
            tags = range(first, last + 1)
            for tag in tags if how == "single" else reversed(tags):
                self.send(spec.Basic.Ack(tag, False))

    # In.
    def on_content(self, kind: int, payload: bytes) -> None:
        if self._closing:
            return
        if kind == HEADER:
            _, _, self._size = CONTENT.unpack_from(payload)
            self._properties = payload[CONTENT.size :]
        else:
            self._body += payload
        if len(self._body) >= self._size:
            body, self._body = bytes(self._body), bytearray()
            self._take(self._publish, body)

    def _take(self, publish: Any, body: bytes) -> None:
        """Take a whole publish."""
        if len(body) > self.rabbit.manners.message_bytes_max:
            self.close(
                406, f"PRECONDITION_FAILED - message size {len(body)} is larger than allowed"
            )
            return
        stored = Stored(
            body=body,
            exchange=publish.exchange,
            routing_key=publish.routing_key,
            properties=self._properties,
        )
        self.rabbit.published += 1
        queues = self.rabbit.routed(publish.exchange, publish.routing_key)
        if not queues and publish.mandatory:
            returned = spec.Basic.Return(312, "NO_ROUTE", publish.exchange, publish.routing_key)
            self._send_content(returned, stored)
        if self.rabbit.manners.confirms != "nack":
            for queue in queues:
                self.rabbit.enqueue(queue, stored)
        self._published += 1

    def on_method(self, method: Any) -> None:
        if isinstance(method, spec.Channel.CloseOk):
            self.connection.channels.pop(self.number, None)
        elif isinstance(method, spec.Channel.Close):
            self.gone()
            self.connection.channels.pop(self.number, None)
            self.send(spec.Channel.CloseOk())
        elif not self._closing:
            self._on_request(method)

    def _on_request(self, method: Any) -> None:
        names = {getattr(method, kind, None) for kind in ("exchange", "queue")}
        if names & self.rabbit.manners.forbidden:
            self.close(403, "ACCESS_REFUSED - access to it in vhost '/' refused")
            return
        missing = self._missing(method)
        if missing:
            self.close(404, f"NOT_FOUND - no {missing} in vhost '/'")
            return
        answer = _REQUESTS.get(type(method))
        if answer is None:
            self.connection.close(540, f"NOT_IMPLEMENTED - {method!r}")
        else:
            answer(self, method)

    def _missing(self, method: Any) -> str:
        """Return the queue or exchange that a request needs and that is not there."""
        queue = getattr(method, "queue", "")
        exchange = getattr(method, "exchange", "")
        is_new = isinstance(method, spec.Queue.Declare | spec.Exchange.Declare)
        no_error = isinstance(method, spec.Queue.Delete | spec.Exchange.Delete)
        if no_error or (is_new and not method.passive):
            return ""
        if queue and queue not in self.rabbit.queues:
            return f"queue '{queue}'"
        known = exchange in self.rabbit.exchanges or not exchange or exchange.startswith("amq.")
        return "" if known else f"exchange '{exchange}'"

    def exchange_declare(self, method: Any) -> None:
        kind = self.rabbit.exchanges.setdefault(method.exchange, method.type)
        if not method.passive and kind != method.type:
            self.close(
                406, f"PRECONDITION_FAILED - inequivalent arg 'type': received {method.type}"
            )
        else:
            self.send(spec.Exchange.DeclareOk())

    def exchange_delete(self, method: Any) -> None:
        self.rabbit.exchanges.pop(method.exchange, None)
        self.send(spec.Exchange.DeleteOk())

    def queue_declare(self, method: Any) -> None:
        name = method.queue or f"amq.gen-{len(self.rabbit.queues)}-{self.rabbit.accepted}"
        asked = {k: v for k, v in (method.arguments or {}).items() if k.startswith("x-")}
        queue = self.rabbit.queues.get(name)
        if queue is None:
            queue = self.rabbit.queues[name] = FakeQueue(name, dict(method.arguments or {}))
            if method.exclusive:
                self.connection.exclusive.append(name)
        held = {k: v for k, v in queue.arguments.items() if k.startswith("x-")}
        if not method.passive and held != asked:
            self.close(406, f"PRECONDITION_FAILED - inequivalent arg for queue '{name}'")
        else:
            self.send(spec.Queue.DeclareOk(name, len(queue.messages), len(queue.consumers)))

    def queue_bind(self, method: Any) -> None:
        self.rabbit.bindings.add((method.exchange, method.routing_key, method.queue))
        self.send(spec.Queue.BindOk())

    def queue_unbind(self, method: Any) -> None:
        self.rabbit.bindings.discard((method.exchange, method.routing_key, method.queue))
        self.send(spec.Queue.UnbindOk())

    def exchange_bind(self, method: Any) -> None:
        bound = (method.source, method.routing_key, method.destination)
        self.rabbit.exchange_bindings.add(bound)
        self.send(spec.Exchange.BindOk())

    def queue_delete(self, method: Any) -> None:
        there = method.queue in self.rabbit.queues
        self.send(spec.Queue.DeleteOk(self.rabbit.remove(method.queue) if there else 0))

    def queue_purge(self, method: Any) -> None:
        messages = self.rabbit.queues[method.queue].messages
        self.send(spec.Queue.PurgeOk(len(messages)))
        messages.clear()

    def qos(self, method: Any) -> None:
        self._prefetch = method.prefetch_count
        self.send(spec.Basic.QosOk())

    def consume(self, method: Any) -> None:
        tag = method.consumer_tag or f"ctag-{len(self.consumers)}"
        queue = self.rabbit.queues[method.queue]
        consumer = Consumer(self, tag, queue, method.no_ack, self._prefetch)
        self.consumers[tag] = consumer
        self.send(spec.Basic.ConsumeOk(tag))
        queue.consumers.append(consumer)
        self.rabbit.deliver(queue)

    def cancel(self, method: Any) -> None:
        self.rabbit.cancelled += 1
        self._drop_consumer(method.consumer_tag)
        if not method.nowait:
            self.send(spec.Basic.CancelOk(method.consumer_tag))

    def cancel_ok(self, _method: Any) -> None: ...

    def _drop_consumer(self, tag: str) -> None:
        consumer = self.consumers.pop(tag, None)
        if consumer is not None and consumer in consumer.queue.consumers:
            consumer.queue.consumers.remove(consumer)

    def get(self, method: Any) -> None:
        queue = self.rabbit.queues[method.queue]
        if not queue.messages:
            self.send(spec.Basic.GetEmpty())
            return
        stored = queue.messages.popleft()
        self._tag += 1
        if not method.no_ack:
            self.owed[self._tag] = (None, queue, stored)
        found = spec.Basic.GetOk(
            self._tag,
            stored.redelivered,
            stored.exchange,
            stored.routing_key,
            len(queue.messages),
        )
        self._send_content(found, stored)

    def confirm_select(self, _method: Any) -> None:
        self._confirms = True
        self.send(spec.Confirm.SelectOk())

    def publish(self, method: Any) -> None:
        self._publish = method

    def ack(self, method: Any) -> None:
        self._answered(method.delivery_tag, method.multiple, self._settle)

    def nack(self, method: Any) -> None:
        multiple = getattr(method, "multiple", False)
        self._answered(
            method.delivery_tag, multiple, self._requeue if method.requeue else self._reject
        )

    def _answered(self, tag: int, multiple: bool, done: Callable[[int], object]) -> None:
        tags = [t for t in self.owed if t <= tag] if multiple else [tag]
        if not tags or not all(t in self.owed for t in tags):
            self.close(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
            return
        queues = {self.owed[t][1] for t in tags}
        for each_tag in sorted(tags, reverse=True):
            done(each_tag)
        for queue in queues:
            self.rabbit.deliver(queue)

    def _settle(self, tag: int) -> tuple[FakeQueue, Stored]:
        consumer, queue, stored = self.owed.pop(tag)
        if consumer is not None:
            consumer.owed -= 1
        return queue, stored

    def _requeue(self, tag: int) -> None:
        queue, stored = self._settle(tag)
        queue.messages.appendleft(dataclasses.replace(stored, redelivered=True))

    def _reject(self, tag: int) -> None:
        queue, stored = self._settle(tag)
        parking = self.rabbit.queues.get(queue.arguments.get("x-dead-letter-routing-key", ""))
        if parking is not None:
            self.rabbit.enqueue(parking, stored)


_REQUESTS: dict[Any, Callable[[Channel, Any], object]] = {
    spec.Exchange.Declare: Channel.exchange_declare,
    spec.Exchange.Delete: Channel.exchange_delete,
    spec.Exchange.Bind: Channel.exchange_bind,
    spec.Queue.Declare: Channel.queue_declare,
    spec.Queue.Bind: Channel.queue_bind,
    spec.Queue.Unbind: Channel.queue_unbind,
    spec.Queue.Delete: Channel.queue_delete,
    spec.Queue.Purge: Channel.queue_purge,
    spec.Basic.Qos: Channel.qos,
    spec.Basic.Consume: Channel.consume,
    spec.Basic.Cancel: Channel.cancel,
    spec.Basic.CancelOk: Channel.cancel_ok,
    spec.Basic.Get: Channel.get,
    spec.Basic.Publish: Channel.publish,
    spec.Basic.Ack: Channel.ack,
    spec.Basic.Nack: Channel.nack,
    spec.Basic.Reject: Channel.nack,
    spec.Confirm.Select: Channel.confirm_select,
}


def _decoded(payload: bytes) -> Any:
    method = spec.methods[int.from_bytes(payload[:4], "big")]()
    method.decode(payload, 4)
    return method


def _method_frame(channel: int, method: Any) -> bytes:
    return _frame(METHOD, channel, method.INDEX.to_bytes(4, "big") + b"".join(method.encode()))


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"
