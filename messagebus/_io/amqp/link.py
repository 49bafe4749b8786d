"""One AMQP connection with one channel to one broker: dialling, calls, the end.

The only place where pika's exceptions become ours. Runs on one asyncio loop; every method must be
called on it. A link is dialled once and never comes back: callers dial another one.
"""

# States of a link; `_end` is set once, and says why:
#
#   dial ─▶ open ─┬─ close: polite, bounded ─────────┐
#                 ├─ abort, hang_up ─────────────────┼─▶ not open: calls fail, `on_lost` is called
#                 └─ broker or network ends it ──────┘     └─▶ ended: its socket is closed
#
# A `ChannelLink` is a channel of its own on the connection of its parent: it ends with the parent, and
# the parent lives on without it.

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import re
import ssl
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pika
import pika.exceptions
import pika.spec
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from messagebus import __version__
from messagebus._io.addresses import NEXT_AFTER_MS, addresses_of, first_answer, is_number
from messagebus._io.amqp.connection import Transport, connection_class, transport_for
from messagebus._io.amqp.frames import HEADER_OVERHEAD
from messagebus.broker import Broker
from messagebus.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_FOUND,
    REASON_CHARS_MAX,
    CertificateRefused,
    ChannelRefused,
    LinkError,
    LinkLost,
    LoginRefused,
    reason_of,
)
from messagebus.secret import Secret
from messagebus.tls import certificate_fault

# pika logs the errors that it also raises; we log the relevant ones ourselves. An application that uses pika
# itself may have set another level.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)

# A broker in alarm reads nothing more from a connection that published, so it answers no close.
CLOSE_TIMEOUT_MS = 2_000
# More than the frame of a close, which may be on its way: messages or answers wait for a slow line.
SLOW_LINE_BYTES = 4_096
# For all links of a client that stops; each takes at most CLOSE_TIMEOUT_MS and ABORT_TIMEOUT_MS together,
# but for a slow line.
CLOSING_TIMEOUT_S = 5.0
# The slowest line that a message of any size has time for, where nobody gave its publish a deadline: 32 KB/s.
LINE_BYTES_PER_MS = 32
# For an abort, which needs no answer, only turns of the loop.
ABORT_TIMEOUT_MS = 500
# pika's own deadlines of a dial come this much after ours. It fails when two end in one turn of the loop:
# 40 of 180 dials with TLS that were given up early ended in a traceback of its callbacks.
PIKA_LATER_S = 1.0
# pika puts a broker's reason inside its own: ConnectionClosedByBroker: (403) 'ACCESS_REFUSED - ...'
BROKERS_REASON = re.compile(r"""ConnectionClosedByBroker: \(\d+\) ['"](.*)['"]""", re.S)

# Refusals that say nothing of user and password: `connection limit (100) is reached`, of a virtual host, a
# user or a node, and `vhost '/' is down`. RabbitMQ gives them the code of a missing right (530).
FOR_NOW = re.compile(r"limit \(\d+\) is reached|vhost '.*' is down")

# A request by pika's name, and its arguments.
Call = tuple[str, Mapping[str, Any]]
REQUESTS: Mapping[str, Callable[..., Any]] = {
    "exchange_declare": lambda exchange_type, **more: pika.spec.Exchange.Declare(
        type=exchange_type, **more
    ),
    "exchange_bind": pika.spec.Exchange.Bind,
    "exchange_unbind": pika.spec.Exchange.Unbind,
    "queue_declare": pika.spec.Queue.Declare,
    "queue_bind": pika.spec.Queue.Bind,
    "queue_unbind": pika.spec.Queue.Unbind,
}
ANSWERS: Mapping[str, Any] = {
    "exchange_declare": pika.spec.Exchange.DeclareOk,
    "exchange_bind": pika.spec.Exchange.BindOk,
    "exchange_unbind": pika.spec.Exchange.UnbindOk,
    "queue_declare": pika.spec.Queue.DeclareOk,
    "queue_bind": pika.spec.Queue.BindOk,
    "queue_unbind": pika.spec.Queue.UnbindOk,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Login data of a link. heartbeat_s: 0 turns heartbeats off. client_id: shown by the broker.

    tls: None for plain TCP. tls_names: address -> name in its certificate, where that is not the host;
    sent as SNI.
    """

    user: str
    password: Secret
    vhost: str = "/"
    heartbeat_s: int = 10
    client_id: str = "messagebus"
    tls: ssl.SSLContext | None = None
    tls_names: Mapping[Broker, str] = field(default_factory=dict)


def line_ms(body_bytes: int) -> int:
    """Return the time in ms that a body of this size may need for its line, beside all other waits."""
    return body_bytes // LINE_BYTES_PER_MS


class Link:
    """An open connection and channel. Made by `dial`.

    address: the address that was dialled. broker: ``host:port`` as the broker calls itself (its cluster
    name), "" when it does not.
    """

    def __init__(self, address: Broker, connection: AsyncioConnection, channel: Channel) -> None:
        self.address = address
        self.connection = connection
        self.channel = channel
        self.broker = _own_name(connection)
        self.has_heartbeats = bool(connection.params.heartbeat)
        self.is_open = True
        self._aborted = False
        self._calls: set[asyncio.Future[Any]] = set()
        self._channels_free = asyncio.Semaphore(max(0, connection.params.channel_max - 1))
        self._on_lost: Callable[[LinkError], None] = lambda _why: None
        self._end: LinkError | None = None
        self._below: set[ChannelLink] = set()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        channel.add_on_close_callback(self._channel_closed)
        self._watch()

    def _watch(self) -> None:
        self.connection.add_on_close_callback(self._connection_closed)

    @functools.cached_property
    def transport(self) -> Transport:
        """The way of publishes and answers out, and of confirms and deliveries in.

        From the first access on they are the transport's; until then they are pika's, as on links of agents.
        """
        return transport_for(self.connection, self.channel)

    @property
    def sent_bytes(self) -> int:
        """The bytes written so far, those that still wait in a buffer of ours included."""
        return int(self.connection.bytes_sent)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of them that the other side's kernel has not taken: in our buffer or our kernel's."""
        transport = self.connection._transport
        if transport is None:
            return 0
        buffered = int(transport.get_write_buffer_size())
        # Closed meanwhile, or another kind of transport.
        with contextlib.suppress(OSError, AttributeError):
            queued = fcntl.ioctl(transport._sock.fileno(), termios.TIOCOUTQ, bytes(4))
            buffered += int.from_bytes(queued, sys.byteorder)
        return buffered

    @property
    def properties_max(self) -> int:
        """The bytes of a message's properties, headers among them, that fit a frame as agreed."""
        return int(self.connection.params.frame_max) - HEADER_OVERHEAD

    def on_lost(self, callback: Callable[[LinkError], None]) -> None:
        """Call this once when the link ends, for any reason; at once if it has ended."""
        if self._end is not None:
            callback(self._end)
        else:
            self._on_lost = callback

    async def call(self, method: str, **arguments: Any) -> Any:
        """Make one request on the channel, as pika names it: ``queue_declare``, ``basic_qos``, ...

        Returns the method of the answer (``method.message_count``, ...). Raises ChannelRefused when
        the broker closes the channel for it (the link is then lost), LinkLost when the link ends.
        """
        return await self._await_answer(getattr(self.channel, method), arguments)

    async def call_all(self, calls: Sequence[Call]) -> None:
        """Make these requests, which declare and bind, without a wait for each answer before the next one.

        The broker answers them in their order. Raises as `call`: of a refused one, and none after it is made.
        """
        if self._end is not None:
            raise self._end
        left, ended = len(calls), asyncio.get_running_loop().create_future()
        kinds = {ANSWERS[method] for method, _ in calls}

        def answered(_frame: Any) -> None:
            nonlocal left
            left -= 1
            if not left and not ended.done():
                ended.set_result(None)

        self._calls.add(ended)
        try:
            self.channel.add_callback(answered, list(kinds), one_shot=False)
            for method, arguments in calls:
                # The channel's own methods would wait for each answer before they send the next.
                self.channel._send_method(REQUESTS[method](**arguments))
            if calls:
                await ended
        except pika.exceptions.AMQPError as fault:
            raise _lost(self.address, fault) from fault
        finally:
            self._calls.discard(ended)
            for kind in kinds:
                self.channel.callbacks.remove(self.channel.channel_number, kind, answered)

    async def confirm_select(self) -> None:
        """Ask for confirms; `transport.on_confirm` gets each answer of the broker."""

        def answered(frame: Any) -> None:
            self.transport.pika_confirm(frame.method)

        await self._await_answer(self.channel.confirm_delivery, {"ack_nack_callback": answered})

    async def _await_answer(self, send: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if self._end is not None:
            raise self._end
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.add(answer)

        def answered(frame: Any) -> None:
            if not answer.done():
                answer.set_result(frame.method)

        try:
            send(callback=answered, **arguments)
            return await answer
        except pika.exceptions.AMQPError as fault:
            raise _lost(self.address, fault) from fault
        finally:
            self._calls.discard(answer)

    async def try_call(self, method: str, **arguments: Any) -> Any:
        """Make a request on a channel of its own: a refusal leaves this link alone. Raises as `call`.

        A broker may allow few channels: then some requests wait. Where it allows only one, a refusal
        ends the link.
        """
        if self.connection.params.channel_max == 1:
            return await self.call(method, **arguments)
        return await self._call_and_close(await self._new_channel(), method, arguments)

    async def _new_channel(self) -> Channel:
        opened: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

        def channel_opened(channel: Channel) -> None:
            channel.add_on_close_callback(lambda *_: self._channels_free.release())
            if opened.done():
                channel.close()  # nobody waits for it any more
            else:
                opened.set_result(channel)

        await self._channels_free.acquire()
        self._calls.add(opened)
        try:
            self.connection.channel(on_open_callback=channel_opened)
            return await opened
        except LinkError:  # others that wait for a channel get the error too
            self._channels_free.release()
            raise
        except pika.exceptions.AMQPError as fault:
            self._channels_free.release()
            raise _lost(self.address, fault) from fault
        finally:
            self._calls.discard(opened)

    async def open_channel(self) -> Link:
        """Open a channel of its own on this connection, as a link that may end without this one."""
        made = ChannelLink(self, await self._new_channel())
        self._below.add(made)
        return made

    async def _call_and_close(
        self, channel: Channel, method: str, arguments: dict[str, Any]
    ) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.add(answer)

        def answered(frame: Any) -> None:
            if not answer.done():
                answer.set_result(frame.method)

        def closed(_channel: Channel, why: BaseException) -> None:
            if not answer.done():
                answer.set_exception(_translate(self.address, why))

        channel.add_on_close_callback(closed)
        try:
            getattr(channel, method)(callback=answered, **arguments)
            return await answer
        except pika.exceptions.AMQPError as fault:
            raise _lost(self.address, fault) from fault
        finally:
            self._calls.discard(answer)
            if channel.is_open:
                channel.close()

    async def count_all(self, queues: Sequence[str]) -> list[tuple[int, int] | None]:
        """Return ready messages and consumers of each queue, None for a missing one. Raises as `call`.

        All are asked at once, on a channel of their own: 500 in 40 ms. A missing one costs another channel.
        """
        asked = [pika.spec.Queue.Declare(queue=queue, passive=True) for queue in queues]
        counts = list[tuple[int, int] | None]()
        for found in await self._ask_all(asked, pika.spec.Queue.DeclareOk):
            if not isinstance(found, ChannelRefused):
                counts.append((found.message_count, found.consumer_count))
            elif found.code == NOT_FOUND:
                counts.append(None)
            else:
                raise found
        return counts

    async def refusals(self, exchanges: Sequence[str]) -> dict[str, ChannelRefused]:
        """Return the broker's word on the exchanges that are missing or forbidden. As `count_all`."""
        if self.connection.params.channel_max == 1:
            for exchange in exchanges:
                try:
                    await self.call("exchange_declare", exchange=exchange, passive=True)
                except ChannelRefused as refused:
                    return {exchange: refused}  # it has ended the link
            return {}
        asked = [pika.spec.Exchange.Declare(exchange=each, passive=True) for each in exchanges]
        answers = await self._ask_all(asked, pika.spec.Exchange.DeclareOk)
        found = zip(exchanges, answers, strict=True)
        return {each: answer for each, answer in found if isinstance(answer, ChannelRefused)}

    async def _ask_all(self, questions: Sequence[Any], answer: Any) -> list[Any]:
        """Send these methods at once, on a channel of their own; return an answer or a refusal of each."""
        answers = list[Any]()
        while len(answers) < len(questions):
            channel = await self._new_channel()
            try:
                await self._ask_on(channel, questions[len(answers) :], answer, answers)
            except ChannelRefused as refused:
                answers.append(refused)
        return answers

    async def _ask_on(
        self, channel: Channel, questions: Sequence[Any], answer: Any, answers: list[Any]
    ) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wanted = len(answers) + len(questions)

        def answered(frame: Any) -> None:
            answers.append(frame.method)
            if len(answers) == wanted and not ended.done():
                ended.set_result(None)

        def closed(_channel: Channel, why: BaseException) -> None:
            if not ended.done():
                ended.set_exception(_translate(self.address, why))

        channel.add_on_close_callback(closed)
        self._calls.add(ended)
        try:
            channel.add_callback(answered, [answer], one_shot=False)
            for question in questions:
                # `queue_declare` would wait for each answer before it sends the next.
                channel._send_method(question)
            await ended
        except pika.exceptions.AMQPError as fault:
            raise _lost(self.address, fault) from fault
        finally:
            self._calls.discard(ended)
            if channel.is_open:
                channel.close()

    def on_blocked(self, callback: Callable[[bool], None]) -> None:
        """Call this with True when the broker blocks publishing (memory or disk alarm), False after."""
        self.connection.add_on_connection_blocked_callback(lambda *_: callback(True))
        self.connection.add_on_connection_unblocked_callback(lambda *_: callback(False))

    def abort(self) -> None:
        """End the link now, without telling the broker. It requeues unanswered deliveries."""
        self._finish(LinkLost(self.address.name, "hung up"))
        if not self._aborted:
            self._aborted = True
            _abort(self.connection)

    async def hang_up(self) -> None:
        """End the link as `abort` does, and return when its socket is closed."""
        self.abort()
        await _until(self.ended)

    async def close(self) -> None:
        """End the link politely; frames written before are sent. Bounded by CLOSE_TIMEOUT_MS, which begins
        anew while the other side takes what was written before: a slow line needs its time.

        Unanswered deliveries come again in their order, because consumers end with their channel and are not
        cancelled before. With single active consumers a cancel would let the next one go on at once, before
        the unanswered deliveries of this one come back.
        """
        self._finish(LinkLost(self.address.name, "closed"))
        if self.connection.is_open and not self._aborted:
            self.channel._consumers.clear()  # pika cancels what it finds there
            self.connection.close()
        try:
            is_moving = True
            while is_moving:
                unsent = self.unsent_bytes
                await asyncio.wait([self.ended], timeout=CLOSE_TIMEOUT_MS / 1000)
                left = not self.ended.done() and unsent > SLOW_LINE_BYTES
                is_moving = left and self.unsent_bytes < unsent
        finally:  # also when cancelled: the socket must not outlive its owner
            await self.hang_up()

    def _channel_closed(self, _channel: Channel, why: BaseException) -> None:
        self._finish(_translate(self.address, why))
        if self.connection.is_open:
            self.connection.close()

    def _connection_closed(self, _connection: Any, why: BaseException) -> None:
        self._finish(_translate(self.address, why))
        if not self.ended.done():
            self.ended.set_result(None)

    def _finish(self, end: LinkError) -> None:
        if self._end is not None:
            return
        self._end, self.is_open = end, False
        for answer in self._calls:
            if not answer.done():
                answer.set_exception(end)
        for each in list(self._below):
            each.connection_ended(end)
        self._on_lost(end)


class ChannelLink(Link):
    """A channel of its own on the connection of a link, with what a link offers."""

    def __init__(self, parent: Link, channel: Channel) -> None:
        self._parent = parent
        super().__init__(parent.address, parent.connection, channel)

    def _watch(self) -> None:
        """Leave the connection to its link, which tells us of its end."""

    def connection_ended(self, why: LinkError) -> None:
        """Note the end of the connection."""
        self._finish(why)
        self._ended()

    def abort(self) -> None:
        """Close the channel; its consumers are not cancelled before, so deliveries come again in order."""
        self._finish(LinkLost(self.address.name, "hung up"))
        if self.channel.is_open:
            self.channel._consumers.clear()
            self.channel.close()

    async def close(self) -> None:
        """Do as `abort`, and return when the broker has answered. Bounded by CLOSE_TIMEOUT_MS."""
        self.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                await asyncio.shield(self.ended)

    def _channel_closed(self, _channel: Channel, why: BaseException) -> None:
        self._finish(_translate(self.address, why))
        self._ended()

    def _ended(self) -> None:
        self._parent._below.discard(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def _finish(self, end: LinkError) -> None:
        # What is on its way to a channel that closes comes again.
        self.transport.on_contents = lambda _arrived: None
        super()._finish(end)


async def dial(address: Broker, credentials: Credentials, *, timeout_ms: int) -> Link:
    """Connect, log in and open a channel, all within timeout_ms, at the first address that answers.

    The addresses of a name are dialled side by side. A refused login ends that: the others would refuse it,
    too, and an account may be locked after some tries. Raises LoginRefused, CertificateRefused (retrying
    does not help) or LinkLost.
    """
    host = address.host.strip("[]")
    if is_number(host):
        return await _dial_at(host, address, credentials, timeout_ms)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            numbers = await addresses_of(host, address.port)
            return await first_answer(
                numbers,
                lambda number: _dial_at(number, address, credentials, timeout_ms),
                # All have their turn, also within the short deadline of a first dial.
                next_after_ms=min(NEXT_AFTER_MS, timeout_ms // (len(numbers) + 1)),
                drop=Link.hang_up,
                ends_all=lambda fault: type(fault) is LoginRefused,
            )
    except TimeoutError:
        raise LinkLost(address.name, f"no AMQP within {timeout_ms} ms") from None
    except OSError as fault:
        raise _lost(address, fault) from fault
    except ExceptionGroup as group:
        raise _of_all_addresses(group.exceptions) from None


def _of_all_addresses(faults: Sequence[Exception]) -> Exception:
    """Return what stands for these: a refused certificate, else what is more than that nobody listens."""
    return min(
        faults,
        key=lambda each: (not isinstance(each, LoginRefused), getattr(each, "absent", False)),
    )


async def _dial_at(number: str, address: Broker, credentials: Credentials, timeout_ms: int) -> Link:
    """Dial one IP address of a broker's host."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Channel] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()

    def fail(_connection: Any, why: BaseException) -> None:
        if not opened.done():
            opened.set_exception(_translate(address, why))
        if not ended.done():
            ended.set_result(None)

    def channel_opened(channel: Channel) -> None:
        if not opened.done():
            opened.set_result(channel)

    connection = connection_class()(
        _parameters(number, address, credentials, timeout_ms),
        on_open_callback=lambda connection: connection.channel(on_open_callback=channel_opened),
        on_open_error_callback=fail,
        on_close_callback=fail,
        custom_ioloop=asyncio.get_running_loop(),
    )
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            channel = await opened
    except TimeoutError:
        _abort(connection)
        await _until(ended)
        raise LinkLost(address.name, f"no AMQP within {timeout_ms} ms") from None
    except asyncio.CancelledError:
        _abort(connection)
        await _until(ended)
        raise
    return Link(address, connection, channel)


async def dial_named(broker: Broker, credentials: Credentials, *, timeout_ms: int) -> Link:
    """Dial as `dial` does. Raises LinkLost also when another broker answers, or one without a name."""
    link = await dial(broker, credentials, timeout_ms=timeout_ms)
    if link.broker != broker.name:
        await link.hang_up()
        said = (
            f"{link.broker} answers there"
            if link.broker
            else "the broker there does not say its name"
        )
        raise LinkLost(broker.name, said)
    return link


def _parameters(
    number: str, address: Broker, credentials: Credentials, timeout_ms: int
) -> pika.ConnectionParameters:
    host = address.host.strip("[]")
    tls = credentials.tls
    patience_s = timeout_ms / 1000 + PIKA_LATER_S
    return pika.ConnectionParameters(
        host=number,
        port=address.port,
        virtual_host=credentials.vhost,
        credentials=pika.PlainCredentials(credentials.user, credentials.password.reveal()),
        heartbeat=credentials.heartbeat_s,
        socket_timeout=patience_s,
        stack_timeout=patience_s,
        ssl_options=tls and pika.SSLOptions(tls, credentials.tls_names.get(address, host)),
        client_properties={
            "product": "messagebus",
            "version": __version__,
            "connection_name": credentials.client_id,
        },
    )


def _abort(connection: AsyncioConnection) -> None:
    """Close the socket in any state of the connection; pika calls its callbacks by itself.

    pika's close does not do: before the handshake is done it fails (it passes on a class where
    an instance is expected), afterwards it waits for the broker. While the connection opens, an end
    that is under way already (`_error` is set) is left alone, or pika would report it twice. A name that
    is resolved and not reported yet is waited for, or pika would go on dialling.
    """
    if _is_resolved_just_now(connection):
        asyncio.get_running_loop().call_soon(_abort, connection)
        return
    under_way = not connection._opened and connection._error is not None
    if not connection.is_closed and not under_way:
        connection._terminate_stream(pika.exceptions.StreamLostError("hung up"))


def _is_resolved_just_now(connection: AsyncioConnection) -> bool:
    looking_up = getattr(connection._connection_workflow, "_task_ref", None)
    future = getattr(looking_up, "_future", None)
    return future is not None and bool(future.done())


async def _until(ended: asyncio.Future[None]) -> None:
    """Wait until pika has closed the socket, some turns of the loop later, before the loop may stop.

    Waits also when cancelled. A dial is cancelled here: its deadline and its caller's are equal, and the
    second one comes while the first one is handled.
    """
    loop = asyncio.get_running_loop()
    until_s, cancelled = loop.time() + ABORT_TIMEOUT_MS / 1000, False
    while not ended.done() and (left_s := until_s - loop.time()) > 0:
        try:
            await asyncio.wait([ended], timeout=left_s)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def _own_name(connection: AsyncioConnection) -> str:
    name = (connection.server_properties or {}).get("cluster_name", "")
    if isinstance(name, bytes):
        name = name.decode("utf-8", "replace")
    try:
        return Broker.parse(name).name if ":" in name else ""
    except ValueError:
        return ""


def _translate(address: Broker, why: BaseException) -> LinkError:
    if reason := certificate_fault(why):
        return CertificateRefused(address.name, reason)
    why = _root(why)
    match why:
        case LinkError():
            return why
        case pika.exceptions.ChannelClosedByBroker(reply_code=code, reply_text=text):
            return ChannelRefused(address.name, code, text)
        case pika.exceptions.ConnectionClosedByBroker(reply_code=code, reply_text=text) if code in (
            ACCESS_REFUSED,
            NOT_ALLOWED,
        ):
            return _refused(address, text)
        # pika guesses these two from any end during the handshake; only the broker's own word counts.
        case (
            pika.exceptions.ProbableAuthenticationError()
            | pika.exceptions.ProbableAccessDeniedError()
        ):
            said = BROKERS_REASON.search(str(why))
            if said is None:
                return _lost(address, why)
            return _refused(address, said[1])
        case _:
            lost = _lost(address, why)
            lost.absent = isinstance(why, ConnectionRefusedError)
            return lost


def _refused(address: Broker, text: str) -> LinkError:
    """Return the error of a refused connection; LinkLost where user and password may be right."""
    if FOR_NOW.search(text):
        return LinkLost(address.name, text[:REASON_CHARS_MAX])
    return LoginRefused(address.name, text)


def _root(why: BaseException) -> BaseException:
    """Return the exception that pika's connection workflow wrapped, several layers deep."""
    while True:
        layers = [*getattr(why, "exceptions", ()), getattr(why, "exception", None), *why.args[:1]]
        inner = [layer for layer in layers if isinstance(layer, BaseException)]
        if not inner:
            return why
        why = inner[-1]


def _lost(address: Broker, why: BaseException) -> LinkLost:
    return LinkLost(address.name, reason_of(why, REASON_CHARS_MAX))
