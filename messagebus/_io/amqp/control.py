"""Administration of one broker over AMQP: declare, delete, audit, the gate, events.

For agents, whose user may configure. One `Control` wraps one link; the broker ends the link for a
request that it refuses, so every method may raise LinkError and the caller dials again.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from messagebus._io.amqp.link import Call, Credentials, Link, dial
from messagebus.broker import Broker
from messagebus.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    CertificateRefused,
    ChannelRefused,
    LinkLost,
    LoginRefused,
)
from messagebus.topology import GATE, Declarations, QueueSpec

# Made by the plugin rabbitmq_event_exchange; durable, so it is still there when the plugin is off.
EVENT_EXCHANGE = "amq.rabbitmq.event"
EVENT_KEYS = ("queue.deleted", "exchange.deleted", "binding.deleted")
# If two messages open the gate at once, the second replaces the first.
GATE_QUEUE = QueueSpec(name=GATE, arguments={"x-queue-type": "classic", "x-max-length": 1})
# Declaring one more queue flushes the names of those before it.
SETTLE_QUEUE = QueueSpec(name="mb.settle", arguments={"x-queue-type": "quorum"})
# Erlang's port mapper: the question after a node's port and its answer (distribution protocol, epmd).
EPMD_ASK, EPMD_ANSWER = 122, 119
# A broker that does not answer a declaration within this time is treated as gone.
CALL_TIMEOUT_S = 5.0
# The same for a declaration: a broker that makes 1,000 queues stands still for 5 s and more on a busy disk. A
# link that is given up begins them all anew.
DECLARE_TIMEOUT_S = 20.0
# Declarations and bindings under way: the broker makes them one after the other, and need not wait for us.
CALLS_AT_ONCE = 64
# Time for the check of one right, many of which are under way.
RIGHT_MS = 10
# No exchange has this name, and no user needs a right on it.
NOWHERE = "mb.nowhere"
_INEQUIVALENT = re.compile(
    r"inequivalent arg '([^']+)' for (queue|exchange) '([^']+)' in vhost '[^']*': "
    r"received (.+?) but current is (.+)$"
)
_VALUE = re.compile(r"the value (.+) of type '\w+'|none")

T = TypeVar("T")
OnEvent = Callable[[str, Mapping[str, Any]], None]


class Control:
    """One administrator's link to a broker. dial_again: opens another link."""

    def __init__(self, link: Link, dial_again: Callable[[], Awaitable[Link]]) -> None:
        self.link = link
        self._dial_again = dial_again
        # One channel for all declarations: with four, RabbitMQ 3.10.8 stopped answering at 1,900 queues.
        self._declaring = asyncio.Lock()
        self._channel: Link | None = None

    @classmethod
    async def dial(cls, address: Broker, credentials: Credentials, *, timeout_ms: int) -> Control:
        """Open a link. Raises LoginRefused or LinkLost."""
        dial_again = functools.partial(dial, address, credentials, timeout_ms=timeout_ms)
        return cls(await dial_again(), dial_again)

    @property
    def is_open(self) -> bool:
        return self.link.is_open

    async def declare(self, wanted: Declarations) -> None:
        """Declare exchanges and queues without bindings: a young queue may not confirm anything.

        Raises ChannelRefused 406 on a mismatch.
        """
        exchanges = [
            (
                "exchange_declare",
                {
                    "exchange": exchange.name,
                    "exchange_type": exchange.type,
                    "durable": exchange.durable,
                    "arguments": exchange.arguments,
                },
            )
            for exchange in wanted.exchanges
        ]
        queues = [
            (
                "queue_declare",
                {"queue": queue.name, "durable": True, "arguments": dict(queue.arguments)},
            )
            for queue in wanted.queues
        ]
        await self._call_all([*exchanges, *queues], "declarations")

    async def mismatch(self, wanted: Declarations) -> str:
        """Describe what exists and differs from wanted; "" for nothing. Creates nothing."""
        return await mismatch(self._try, wanted)

    async def counts(self, queue: str) -> tuple[int, int] | None:
        """Return the counts of ready messages and consumers of a queue; None when it does not exist."""
        try:
            found = await self._try("queue_declare", queue=queue, passive=True)
        except ChannelRefused as refused:
            if refused.code != NOT_FOUND:
                raise
            return None
        return found.message_count, found.consumer_count

    async def count_all(self, queues: Sequence[str]) -> dict[str, tuple[int, int] | None]:
        """Return `counts` of many queues, asked at once."""
        if self.link.connection.params.channel_max == 1:
            return {queue: await self.counts(queue) for queue in queues}
        found = await self._bounded(self.link.count_all(queues), "queue.declare of all")
        return dict(zip(queues, found, strict=True))

    async def purge(self, queue: str) -> int | None:
        """Drop the ready messages of a queue. Returns how many; None when it does not exist."""
        try:
            return int((await self._try("queue_purge", queue=queue)).message_count)
        except ChannelRefused as refused:
            if refused.code != NOT_FOUND:
                raise
            return None

    async def bind(self, wanted: Declarations, verb: str = "bind") -> None:
        """Make the bindings of declared and settled queues; "unbind": remove them. As `declare`."""
        await self._call_all([binding.call(verb) for binding in wanted.bindings], "bindings")

    async def audit(self, wanted: Declarations) -> str:
        """Check that all queues exist, and bind them. Returns the name of a missing queue, "" for none.

        The link is lost when one is missing.
        """
        for queue in wanted.queues:
            try:
                await self._call("queue_declare", queue=queue.name, passive=True)
            except ChannelRefused as refused:
                if refused.code != NOT_FOUND:
                    raise
                return queue.name
        await self.bind(wanted)
        return ""

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with all its messages; a missing one is no error."""
        await self._call("queue_delete", queue=name)

    async def delete_exchange(self, name: str) -> None:
        await self._call("exchange_delete", exchange=name)

    async def declare_settle_queue(self) -> None:
        """Flush the names of all queues declared before, to the file, not to the disk.

        Deletes the settle queue and declares it again: the broker looks up only an unknown queue.
        """
        await self._call("queue_delete", queue=SETTLE_QUEUE.name)
        await self._declare_queue(SETTLE_QUEUE)

    async def gate_is_open(self) -> bool:
        """Return whether the gate's mark exists."""
        found = await self.counts(GATE)
        return found is not None and found[0] > 0

    async def open_gate(self) -> None:
        """Make the gate's mark. It is published over a link of its own.

        A broker in alarm reads nothing more from a link that has published.
        """
        await self._declare_queue(GATE_QUEUE)
        link = await self._dial_again()
        answered = asyncio.Event()
        link.transport.on_confirm = lambda *_: answered.set()
        try:
            await self._bounded(link.confirm_select(), "confirm.select")
            link.channel.basic_publish("", GATE, b"")
            await self._bounded(answered.wait(), "the message that opens the gate")
        finally:
            await link.close()

    async def follow_events(self, on_event: OnEvent) -> bool:
        """Call on_event(key, headers) for everything deleted from now on.

        Returns False when the broker has no event exchange.
        """
        if not await self._has_exchange(EVENT_EXCHANGE):
            return False
        answer = await self._call("queue_declare", queue="", exclusive=True, auto_delete=True)
        for key in EVENT_KEYS:
            await self._call(
                "queue_bind", queue=answer.queue, exchange=EVENT_EXCHANGE, routing_key=key
            )

        def arrived(_channel: Any, method: Any, properties: Any, _body: bytes) -> None:
            on_event(method.routing_key, properties.headers or {})

        self.link.channel.basic_consume(
            answer.queue, on_message_callback=arrived, auto_ack=True, exclusive=True
        )
        return True

    async def declare_probe(self) -> str:
        """Declare an exclusive queue named by the broker; return the name."""
        answer = await self._call("queue_declare", queue="", exclusive=True)
        return str(answer.queue)

    async def close(self) -> None:
        await self.link.close()

    def abort(self) -> None:
        self.link.abort()

    async def _declare_queue(self, queue: QueueSpec) -> None:
        await self._call(
            "queue_declare", queue=queue.name, durable=True, arguments=dict(queue.arguments)
        )

    async def _has_exchange(self, name: str) -> bool:
        try:
            await self._try("exchange_declare", exchange=name, passive=True)
        except ChannelRefused as refused:
            if refused.code != NOT_FOUND:
                raise
            return False
        return True

    async def _call(self, method: str, **arguments: Any) -> Any:
        return await self._bounded(self.link.call(method, **arguments), method)

    async def _call_all(self, calls: Sequence[Call], what: str) -> None:
        """Make requests on the channel for declarations: a refusal ends it, and leaves the link alone.

        Where the broker allows only one channel, a refusal ends the link.
        """
        if self.link.connection.params.channel_max == 1:
            for method, arguments in calls:
                await self._call(method, **arguments)
            return
        async with self._declaring:
            channel = self._channel
            if channel is None or not channel.is_open:
                channel = await self._bounded(self.link.open_channel(), "channel.open")
                self._channel = channel
            try:
                for first in range(0, len(calls), CALLS_AT_ONCE):
                    some = calls[first : first + CALLS_AT_ONCE]
                    await self._bounded(channel.call_all(some), what, DECLARE_TIMEOUT_S)
            except asyncio.CancelledError:
                channel.abort()  # answers on their way would count for the next requests
                raise

    async def _try(self, method: str, **arguments: Any) -> Any:
        """Call on a channel of its own."""
        return await self._bounded(self.link.try_call(method, **arguments), method)

    async def _bounded(self, call: Awaitable[T], what: str, timeout_s: float | None = None) -> T:
        timeout_s = timeout_s or CALL_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except TimeoutError:
            self.link.abort()
            raise LinkLost(
                self.link.address.name, f"no answer to {what} within {timeout_s:g} s"
            ) from None


async def mismatch(try_call: Callable[..., Awaitable[Any]], wanted: Declarations) -> str:
    """Describe what exists and differs from wanted, in the broker's words; declares only what exists.

    try_call: a request on a channel of its own, as `Link.try_call`.
    """
    for exchange in wanted.exchanges:
        kind = {
            "exchange_type": exchange.type,
            "durable": exchange.durable,
            "arguments": exchange.arguments,
        }
        told = await _mismatch_of(try_call, "exchange", exchange.name, kind)
        if told:
            return told
    for queue in wanted.queues:
        kind = {"durable": True, "arguments": dict(queue.arguments)}
        told = await _mismatch_of(try_call, "queue", queue.name, kind)
        if told:
            return told
    return ""


async def _mismatch_of(
    try_call: Callable[..., Awaitable[Any]], what: str, name: str, kind: Mapping[str, Any]
) -> str:
    try:
        await try_call(f"{what}_declare", **{what: name}, passive=True)
        await try_call(f"{what}_declare", **{what: name}, **kind)
    except ChannelRefused as refused:
        if refused.code == PRECONDITION_FAILED:
            return mismatch_text(refused.reason)
        if refused.code not in (NOT_FOUND, RESOURCE_LOCKED):
            raise
        return "" if refused.code == NOT_FOUND else refused.reason
    return ""


def mismatch_text(reason: str) -> str:
    """Shorten RabbitMQ's refusal of a declaration to the kind, its name, and both values."""
    found = _INEQUIVALENT.search(reason)
    if found is None:
        return reason
    key, what, name, wanted, existing = found.groups()
    return f"{what} '{name}': {key} is wanted {_value(wanted)} and exists {_value(existing)}"


def _value(text: str) -> str:
    found = _VALUE.fullmatch(text)
    return (found[1] or "none") if found else text


class Right(NamedTuple):
    """One permission. operation: write (to an exchange) or read (a queue). name: of the exchange or queue."""

    operation: Literal["write", "read"]
    name: str


async def rights_of(
    address: Broker, credentials: Credentials, rights: Iterable[Right], *, timeout_ms: int
) -> set[Right] | None:
    """Return which of these rights a user has, None when the login is refused; nothing changes.

    timeout_ms: for the login, and once more for the answers, each of which adds RIGHT_MS. Raises LinkLost
    when the broker cannot say.
    """
    try:
        link = await dial(address, credentials, timeout_ms=timeout_ms)
    except CertificateRefused as fault:  # a fault between the agent and its broker, not the user's
        raise LinkLost(fault.broker, fault.reason) from fault
    except LoginRefused:
        return None
    rights = list(rights)
    try:
        async with asyncio.timeout((timeout_ms + RIGHT_MS * len(rights)) / 1000):
            has = await asyncio.gather(*(_has_right(link, right) for right in rights))
    except TimeoutError:
        raise LinkLost(address.name, "rights are not told in time") from None
    finally:
        link.abort()
    return {right for right, is_had in zip(rights, has, strict=True) if is_had}


async def _has_right(link: Link, right: Right) -> bool:
    """Test a right by a request that fails in any case; the check of the right comes first.

    So the broker decides, whatever its users are stored in.
    """
    try:
        if right.operation == "write":
            await link.try_call("exchange_bind", destination=right.name, source=NOWHERE)
        else:
            await link.try_call(
                "basic_consume",
                queue=right.name,
                on_message_callback=lambda *_: None,
                arguments={"x-priority": "no number"},
            )
    except ChannelRefused as refused:
        return refused.code != ACCESS_REFUSED or f"'{right.name}'" not in refused.reason
    return True


async def port_answers(address: Broker, *, timeout_s: float) -> bool | None:
    """Return whether the AMQP port takes connections, as that of a frozen broker does; None: no answer."""
    try:
        async with asyncio.timeout(timeout_s):
            _reader, writer = await asyncio.open_connection(address.host.strip("[]"), address.port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return None
    writer.close()
    return True


async def port_refuses(address: Broker, *, timeout_s: float) -> bool:
    """Return whether the AMQP port refuses connections. No answer in time is not a refusal."""
    return await port_answers(address, timeout_s=timeout_s) is False


async def node_is_gone(host: str, node_name: str, epmd_port: int, *, timeout_s: float) -> bool:
    """Return whether Erlang's port mapper on the host says that this node does not live.

    A node is registered there from before it opens any port until its process has ended. No other
    sign proves anything: a port that refuses may be suspended, or behind a firewall.
    """
    name = node_name.partition("@")[0].encode()
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host.strip("[]"), epmd_port)
            try:
                writer.write((len(name) + 1).to_bytes(2, "big") + bytes([EPMD_ASK]) + name)
                kind, result = await reader.readexactly(2)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    return kind == EPMD_ANSWER and result != 0
