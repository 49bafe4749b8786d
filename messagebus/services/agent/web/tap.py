"""Taps of topics: what is published to one broker passes by, for people who look; nothing waits for them.

A tap is a transient, exclusive queue of a link of its own, bounded by length and bytes, whose oldest messages
are dropped. So a slow reader holds up nobody, and the end of the connection is the end of the tap. A queue
with more than is read in a second is unbound until it was nearly read, since each copy costs the publishers
of the topic. A broker does not tell how many messages passed a queue by: a line ``{"missed": true}`` says
that some may have.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from messagebus._io.amqp.batch import BatchDamaged
from messagebus._io.amqp.frames import Arrived
from messagebus._io.amqp.link import Link
from messagebus._io.amqp.packed import entries_of
from messagebus._io.amqp.properties import ALONE, in_batch, is_batch
from messagebus.clock import wall_ms
from messagebus.destination import Subscription, Topic
from messagebus.envelope import as_envelope, write_envelope
from messagebus.errors import LinkError, LinkLost, MessageBusError, NameInvalid
from messagebus.numbers import read_whole
from messagebus.services.agent.topology.register import Entry
from messagebus.services.agent.web.login import REMEMBERED_S, Judged
from messagebus.services.agent.web.requests import error
from messagebus.topology import Wanted, parse_wanted

log = logging.getLogger("messagebus.agent")

TAPS_MAX, TAPS_OF_USER_MAX = 8, 4
TAP_S_MAX = 900.0
# Beyond it: for lines that are on their way to a reader.
END_S_MAX = 30.0
LENGTH_MAX, LENGTH = 10_000, 1_000
RATE_MAX, RATE = 25_000, 1_000
# Of all lines of one tap, a second.
BYTES_PER_S = 8 << 20
# Ready in the broker, and (times PREFETCH, of one message) on the way to us.
QUEUE_BYTES_MAX = 32 << 20
PREFETCH = 100
CALL_TIMEOUT_S = 5.0
# An empty line, so that each end notices the loss of the other.
QUIET_S = 10.0
# While messages arrive.
LOOK_EVERY_S = 0.1
# A queue is bound again when so much of a second's messages is left: two looks, so that lines go on.
REBOUND_S = 2 * LOOK_EVERY_S

IsAllowed = Callable[[], Awaitable[bool]]
Judge = Callable[[Request, Mapping[str, Wanted]], Awaitable[Judged | Response]]


class Taps:
    """The taps of one agent. dial: opens a link of the agent's own user. opened: since the start."""

    def __init__(self, broker: str, dial: Callable[[], Awaitable[Link]]) -> None:
        self._broker, self._dial = broker, dial
        self.open: dict[int, str] = {}
        self.opened = 0
        self._users = Counter[str]()

    def route(self, judge: Judge, entries: Callable[[], Mapping[str, Entry]]) -> Route:
        """Return ``GET /tap?destination=orders&length_max=1000&rate_max=1000``."""

        async def answer(request: Request) -> Response:
            query = request.query_params
            try:
                topic = parse_wanted(query.get("destination", ""))
                length = read_whole(query.get("length_max", LENGTH), 1, LENGTH_MAX)
                rate = read_whole(query.get("rate_max", RATE), 1, RATE_MAX)
            except (NameInvalid, ValueError) as fault:
                return error(400, str(fault))
            if not isinstance(topic, Topic):
                return error(400, f"{topic}: a tap is of a topic")
            readable = dict[str, Wanted]()
            for name, entry in entries().items():
                wanted = parse_wanted(name) if entry.alive else None
                if isinstance(wanted, Subscription) and wanted.topic == topic:
                    readable[name] = wanted
            judged = await judge(request, readable)
            if isinstance(judged, Response):
                return judged
            if not readable:
                return error(404, f"no subscription of topic {topic}: nobody may read it")
            if len(judged.forbidden) == len(readable):
                told = f"user {judged.user!r} may read no subscription of {topic}"
                return error(403, told)

            async def is_allowed() -> bool:
                again = await judge(request, readable)
                if isinstance(again, Response):
                    return again.status_code >= 500  # nobody can say now
                return len(again.forbidden) < len(readable)

            return await self._tapped(topic, length, rate, judged.user or "operator", is_allowed)

        return Route("/tap", answer, methods=["GET"])

    async def _tapped(
        self, topic: Topic, length: int, rate: int, user: str, is_allowed: IsAllowed
    ) -> Response:
        if len(self.open) >= TAPS_MAX:
            return error(429, f"{TAPS_MAX} taps are open here")
        if self._users[user] >= TAPS_OF_USER_MAX:
            return error(429, f"user {user!r} has {TAPS_OF_USER_MAX} taps open here")
        self.opened += 1
        number = self.opened
        self.open[number] = str(topic)
        self._users[user] += 1
        try:
            tap = await _Tap.begin(await self._dial(), self._broker, topic, length, rate)
        except BaseException as fault:
            self._ended(number, user)
            if isinstance(fault, MessageBusError):
                return error(503, str(fault))
            raise
        log.info("tap opened topic=%s user=%r number=%d", topic, user, number)

        async def ended() -> None:
            self._ended(number, user)
            log.info("tap ended topic=%s number=%d lines=%d", topic, number, tap.passed)
            await tap.close()

        return _Streaming(tap.lines(), ended, is_allowed)

    def _ended(self, number: int, user: str) -> None:
        if self.open.pop(number, None) is not None:
            self._users[user] -= 1
            self._users = +self._users  # without users that have none


class _Streaming(StreamingResponse):
    """A stream that calls `ended` however it ends, begun or not.

    It ends in time whatever its reader does, and within a minute when the reader's rights are taken.
    """

    def __init__(
        self,
        lines: AsyncIterator[bytes],
        ended: Callable[[], Awaitable[None]],
        is_allowed: IsAllowed,
    ) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._ended, self._is_allowed = ended, is_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streaming = asyncio.ensure_future(super().__call__(scope, receive, send))
        allowed = asyncio.ensure_future(self._while_allowed())
        try:
            await asyncio.wait(
                {streaming, allowed},
                timeout=TAP_S_MAX + END_S_MAX,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if streaming.done():
                streaming.result()
        finally:
            for each in (streaming, allowed):
                each.cancel()
            await asyncio.wait({streaming, allowed})
            await asyncio.shield(asyncio.ensure_future(self._ended()))

    async def _while_allowed(self) -> None:
        """Return when its reader's rights are taken."""
        while True:
            await asyncio.sleep(REMEMBERED_S)
            if not await self._is_allowed():
                log.info("tap ended: its user may not read it any more")
                return


class _Tap:
    """One tap. passed: lines of messages so far."""

    def __init__(self, link: Link, broker: str, topic: Topic, length: int, rate: int) -> None:
        self._link, self._broker, self._topic = link, broker, str(topic)
        self._length, self._rate = length, rate
        self._exchange = topic.exchange
        self._queue = ""
        self._is_bound = False
        self._arrived = deque[Arrived]()
        self._event = asyncio.Event()
        self.passed = self._contents = 0

    @classmethod
    async def begin(cls, link: Link, broker: str, topic: Topic, length: int, rate: int) -> _Tap:
        """Make the queue and consume. Raises LinkError; the link is closed then."""
        tap = cls(link, broker, topic, length, rate)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await tap._begin()
        except TimeoutError:
            link.abort()
            raise LinkLost(broker, f"no tap within {CALL_TIMEOUT_S:g} s") from None
        except BaseException:
            link.abort()
            raise
        return tap

    async def _begin(self) -> None:
        link = self._link
        bounds = {
            "x-max-length": self._length,
            "x-max-length-bytes": QUEUE_BYTES_MAX,
            "x-overflow": "drop-head",
        }
        made = await link.call(
            "queue_declare", queue="", exclusive=True, auto_delete=True, arguments=bounds
        )
        self._queue = made.queue
        await self._bind(True)
        await link.call("basic_qos", prefetch_count=PREFETCH)
        link.transport.on_contents = self._take
        link.on_lost(lambda _why: self._event.set())
        await link.call(
            "basic_consume",
            queue=self._queue,
            on_message_callback=link.transport.pika_content,
            exclusive=True,
        )

    async def _bind(self, wanted: bool) -> None:
        method = "queue_bind" if wanted else "queue_unbind"
        await self._link.call(method, queue=self._queue, exchange=self._exchange)
        self._is_bound = wanted

    def _take(self, arrived: list[Arrived]) -> None:
        self._arrived += arrived
        self._event.set()

    async def close(self) -> None:
        await self._link.close()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield lines, several at once, until TAP_S_MAX or the end of the link, which is told."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + TAP_S_MAX
        due_s = looked_s = loop.time()
        yield write_envelope({"tap": self._topic, "broker": self._broker}) + b"\n"
        while (now_s := loop.time()) < until_s and self._link.is_open:
            if now_s - looked_s >= LOOK_EVERY_S:
                looked_s = now_s
                if await self._leave_or_return():
                    yield b'{"missed":true}\n'
            if not self._arrived:
                self._event.clear()
                try:
                    async with asyncio.timeout(QUIET_S if self._is_bound else LOOK_EVERY_S):
                        await self._event.wait()
                except TimeoutError:
                    if self._is_bound:
                        yield b"\n"
                continue
            chunk, count = self._chunk()
            due_s = max(due_s, now_s) + max(count / self._rate, len(chunk) / BYTES_PER_S)
            yield chunk
            await asyncio.sleep(max(0.0, due_s - loop.time()))
        why = f"after {TAP_S_MAX:g} s" if self._link.is_open else "the broker has gone"
        yield write_envelope({"ended": why}) + b"\n"

    def _chunk(self) -> tuple[bytes, int]:
        """Return lines of what has arrived, and their number; acks it. Looks wait for no more than these."""
        lines, tag, most = list[bytes](), 0, self._rate * LOOK_EVERY_S
        while self._arrived and len(lines) <= most:
            tag, _redelivered, raw, body = self._arrived.popleft()
            lines += self._lines_of(raw, body)
            self._contents += 1
        self._link.transport.ack(tag, True)
        self._link.transport.flush()
        self.passed += len(lines)
        return b"".join(lines), len(lines)

    def _lines_of(self, raw: bytes, body: bytes) -> Iterator[bytes]:
        entries = [(raw, body)]
        reading = ALONE
        if is_batch(raw):
            with suppress(BatchDamaged):
                entries, reading = entries_of(raw, body), in_batch(raw)
        for properties, inner in entries:
            stamp_ms = reading.stamp_ms(properties)
            told = as_envelope(
                reading.message(properties, inner),
                destination=self._topic,
                time_ms=wall_ms() if stamp_ms is None else stamp_ms,
                received={"broker": self._broker},
            )
            yield write_envelope(told) + b"\n"

    async def _leave_or_return(self) -> bool:
        """Unbind a queue that fills, bind it again before it is read. Returns whether some are missed."""
        # Contents that are read in a second, each of one line or more.
        a_second = self._rate * self._contents / max(1, self.passed)
        few = min(REBOUND_S * a_second, self._length / 2)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                found = await self._link.call("queue_declare", queue=self._queue, passive=True)
                if not self._is_bound and found.message_count <= few:
                    await self._bind(True)
                # Some messages before the bound, so that a queue that is about to drop is seen, too.
                elif self._is_bound and (
                    found.message_count >= self._length * 0.9 or found.message_count >= a_second > 0
                ):
                    await self._bind(False)
                    return True
        except (LinkError, TimeoutError):
            pass
        return False
