"""Publishes of requests: messages of bodies and headers, the answer of each end, replays by key.

The table of ends is in docs/guides/gateway.md. A 2xx is given for confirmed messages alone; 202 only where
the caller asked for no confirm.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from messagebus import (
    AsyncPublisher,
    BacklogFull,
    ConfigError,
    Destination,
    Durability,
    Message,
    MessageInvalid,
    NameInvalid,
    Outcome,
    Published,
    Stopped,
    WrongPayload,
)
from messagebus.bodies import decode_json
from messagebus.clock import monotonic_ms
from messagebus.envelope import FIELDS_OF_MESSAGE
from messagebus.integrations import cloudevents
from messagebus.message import BODY_BYTES_MAX, Options
from messagebus.numbers import read_number
from messagebus.services.gateway.problems import Problem, encoded, seconds

KEY_FORM = re.compile(r"[A-Za-z0-9._:-]{1,128}")
TIMEOUT_S, TIMEOUT_S_MAX = 5.0, 30.0
DELAY_S_MAX = 7 * 86_400
TTL_S_MAX = 4_294_967
HEADERS_MAX, HEADERS_BYTES_MAX = 64, 16 * 1024
# Bodies above this take turns.
LARGE_BYTES = 1 << 20
BATCH_MAX, BATCH_BYTES_MAX = 10_000, 64 << 20
# A body in Base64, and all else that an envelope may hold.
LINE_BYTES_MAX = 24 << 20
# What is handed to the publisher in one call.
GROUP_BYTES_MAX = 1 << 20
REPLAYS_MAX, REPLAY_MS = 200_000, 600_000
_TEXT_HEADERS = {
    "mb-key": "key",
    "mb-type": "type",
    "mb-correlation-id": "correlation_id",
    "mb-reply-to": "reply_to",
}
_CODINGS = {"content-encoding": "identity", "transfer-encoding": "chunked"}
_TRACE = ("traceparent", "tracestate", "baggage")
_FIELDS = {"id", "priority", "headers", *FIELDS_OF_MESSAGE}
# A reply to amq.rabbitmq.reply-to ends the channel of who does not consume from it.
_OWN, _OWN_REFUSED = "amq.", "reply_to: names that begin with amq. are the broker's own"
# The reason of a broker, or an agent, for what the user's own rights do not cover; no try later helps.
_FORBIDDEN = re.compile("(403 )?ACCESS_REFUSED")
# Shows that no page of another site has sent a request; see messagebus.http.guard.
_CLIENT = "mb-client"
_IGNORED = {"destination", "time_ms", "received"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One publish that a request asks for."""

    message: Message
    options: Options
    timeout_s: float
    waits: bool = True


def read_wanted(headers: Iterable[tuple[str, str]], body: bytes) -> Wanted:
    """Read a request: the body is the message. Raises Problem 400."""
    said = _Headers()
    for name, value in headers:
        said.read(name, value)
    said.check()
    try:
        message = said.message(body)
    except MessageInvalid as fault:
        raise _bad(str(fault), fault.docs) from None
    return Wanted(message, said.options, said.timeout_s, said.waits)


class _Headers:
    """Message and options of a publish, as the headers of its request give them."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.own: dict[str, Any] = {}
        self.own_bytes = 0
        self.events: list[tuple[str, str]] = []
        self.content_type, self.key = "", ""
        self.options: Options = {}
        self.timeout_s, self.waits = TIMEOUT_S, True

    def read(self, name: str, value: str) -> None:
        """Take one header. Raises Problem 400."""
        if name == "content-type":
            self.content_type = value
        elif name == "idempotency-key":
            if self.key and value != self.key:
                raise _bad("Idempotency-Key: two of them")
            self.key = value
        elif name in _TRACE:
            self.own[name] = value
        elif name.startswith("ce-"):
            self.events.append((name, value))
        elif name in _CODINGS and value.lower() != _CODINGS[name]:
            raise _bad(f"{name.title()} {value[:40]!r}: send the body as it is")
        elif name.startswith("mb-") and name != _CLIENT:
            self._read_ours(name, value)

    def _read_ours(self, name: str, value: str) -> None:
        if name in _TEXT_HEADERS:
            self.fields[_TEXT_HEADERS[name]] = value
        elif name.startswith("mb-header-") and len(name) > 10:
            self.own[name[10:]] = value
            self.own_bytes += len(name) - 10 + len(value.encode())
        elif name == "mb-priority":
            self.fields["priority"] = int(value) if re.fullmatch(r"\d", value) else value
        elif name == "mb-ttl-s":
            self.options["ttl_s"] = seconds(value, name, 0, TTL_S_MAX)
        elif name == "mb-delay-s":
            self.options["deliver_after_s"] = seconds(value, name, 0, DELAY_S_MAX)
        elif name == "mb-timeout-s":
            self.timeout_s = seconds(value, name, 0.001, TIMEOUT_S_MAX)
        elif name == "mb-durability":
            if value not in ("none", "confirmed"):
                raise _bad(f"MB-Durability {value[:40]!r}: none or confirmed")
            self.waits = value != "none"
        else:
            raise _bad(f"{name[:60]}: no such header")

    def check(self) -> None:
        """Raise Problem 400 for what no single header shows."""
        if len(self.own) > HEADERS_MAX or self.own_bytes > HEADERS_BYTES_MAX:
            raise _bad(f"MB-Header-: at most {HEADERS_MAX} headers, {HEADERS_BYTES_MAX} bytes")
        if self.fields.get("reply_to", "").startswith(_OWN):
            raise _bad(_OWN_REFUSED)
        if self.key and not KEY_FORM.fullmatch(self.key):
            raise _bad("Idempotency-Key: 1 to 128 of A-Z a-z 0-9 . _ : -")

    def message(self, body: bytes) -> Message:
        """Return the message with this body, which may be a CloudEvent. Raises MessageInvalid."""
        media = self.content_type.partition(";")[0].strip().lower()
        if media == cloudevents.STRUCTURED:
            event = cloudevents.of_json(_json(body))
        elif self.events:
            event = cloudevents.of_headers(self.events, body, self.content_type)
        else:
            return Message(
                body=body,
                content_type=self.content_type,
                message_id=self.key,
                headers=self.own,
                **self.fields,
            )
        return _of_event(event, self.key, self.own, self.fields)


def _of_event(event: Message, key: str, own: Mapping[str, Any], fields: dict[str, Any]) -> Message:
    headers = dict(event.headers)
    if key and event.message_id not in ("", key):
        headers[f"{cloudevents.PREFIX}id"] = event.message_id
    given = {"key": event.key} | fields
    return Message(
        body=event.body,
        content_type=event.content_type,
        message_id=key or event.message_id,
        headers=headers | dict(own),
        **given,
    )


def _json(body: bytes) -> Any:
    try:
        return decode_json(body)
    except WrongPayload as fault:
        raise MessageInvalid(str(fault)) from None


def _bad(detail: str, docs: str = "") -> Problem:
    return Problem(400, detail, outcome="not sent", docs=docs)


async def submit(
    publisher: AsyncPublisher,
    destination: Destination,
    wanted: Wanted,
    admit_wait_s: float,
) -> asyncio.Future[Published]:
    """Hand a message to the publisher. Raises Problem: nothing was sent."""
    try:
        async with asyncio.timeout(admit_wait_s):
            return await publisher.submit(
                destination, wanted.message, timeout_s=wanted.timeout_s, **wanted.options
            )
    except (MessageInvalid, NameInvalid, ConfigError) as fault:
        raise _bad(str(fault), fault.docs) from None
    except (BacklogFull, TimeoutError):
        raise _later("there is no room: brokers are away, or slow", BacklogFull.docs) from None
    except Stopped:
        raise _later("this gateway ends") from None


def _later(detail: str, docs: str = "") -> Problem:
    return Problem(503, detail, outcome="not sent", retry=True, retry_after_s=1, docs=docs)


def end_as_json(end: Published) -> dict[str, Any]:
    """Return the end of one message for an answer."""
    found = {"id": end.message_id, "outcome": outcome_of(end)}
    if end.broker:
        found["broker"] = end.broker
    if end.reason and end.outcome is not Outcome.CONFIRMED:
        found["reason"] = end.reason
    return found


def outcome_of(end: Published) -> str:
    """Return the outcome; "not sent" where the deadline passed before."""
    if end.outcome is Outcome.REFUSED and not end.attempts:
        return "not sent"
    return end.outcome.value


def problem_of(end: Published) -> Problem:
    """Return the problem of a message that is not confirmed."""
    outcome, reason = outcome_of(end), end.reason
    message_id = end.message_id
    if _FORBIDDEN.match(reason):
        return Problem(403, reason, outcome=outcome, message_id=message_id)
    match outcome:
        case "unroutable":
            detail = "there is no subscription, or no such topic or queue"
            return Problem(404, detail, outcome=outcome, message_id=message_id)
        case "unknown":
            detail = f"it may be stored or not: {reason or 'no answer'}; send it again with this id"
            return Problem(504, detail, outcome=outcome, message_id=message_id, retry=True)
    detail = reason or f"the message was {outcome}"
    return Problem(503, detail, outcome=outcome, message_id=message_id, retry=True, retry_after_s=1)


# Keys that were used before.
@dataclass(slots=True)
class _Used:
    print: bytes
    end: asyncio.Future[Published]
    until_ms: int


class Replays:
    """Keys of this process, by principal and destination: their messages, and how they ended."""

    def __init__(self) -> None:
        self._used: OrderedDict[tuple[str, str, str], _Used] = OrderedDict()
        self._turns: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()

    def turn(self, place: tuple[str, str, str]) -> asyncio.Lock:
        """Return the lock of a key, held from `before` to `began`: between, a full backlog is waited for."""
        return self._turns.setdefault(place, asyncio.Lock())

    def __len__(self) -> int:
        return len(self._used)

    async def before(self, place: tuple[str, str, str], wanted: Wanted) -> Published | None:
        """Return the end of the same message, if it was confirmed, or is when it ends.

        Raises Problem 422 for another message under this key.
        """
        used = self._used.get(place)
        if used is None or used.until_ms < monotonic_ms():
            return None
        if used.print != _print(wanted):
            raise Problem(422, "this key was used for another message", outcome="not sent")
        end = await asyncio.shield(used.end)
        return end if end.outcome is Outcome.CONFIRMED else None

    def began(
        self, place: tuple[str, str, str], wanted: Wanted, end: asyncio.Future[Published]
    ) -> None:
        """Note a publish under way."""
        self._used[place] = _Used(_print(wanted), end, monotonic_ms() + REPLAY_MS)
        self._used.move_to_end(place)
        while len(self._used) > REPLAYS_MAX or (
            next(iter(self._used.values())).until_ms < monotonic_ms()
        ):
            self._used.popitem(last=False)


def _print(wanted: Wanted) -> bytes:
    message = wanted.message
    rest = [
        message.content_type,
        sorted(message.headers.items()),
        (message.priority, *(getattr(message, name) for name in FIELDS_OF_MESSAGE)),
        sorted(wanted.options.items()),
    ]
    made = hashlib.blake2b(message.body, digest_size=16)
    made.update(repr(rest).encode(errors="surrogatepass"))
    return made.digest()


# Batches.
class Batch:
    """Messages of one request that are published while it is read. Ends are in the order of the request."""

    def __init__(
        self,
        publisher: AsyncPublisher,
        destination: Destination,
        admit_wait_s: float,
        timeout_s: float,
    ) -> None:
        self._publisher, self._destination = publisher, destination
        self._admit_wait_s, self._timeout_s = admit_wait_s, timeout_s
        self._parts: list[asyncio.Future[Published] | asyncio.Task[list[Published]]] = []
        self._count = 0
        self.stopped: Problem | None = None
        """The reason why not all was published."""

    def __len__(self) -> int:
        return self._count

    async def add(self, wanted: Wanted) -> None:
        """Publish one more. Raises Problem: this one is not sent."""
        if self._count >= BATCH_MAX:
            raise Problem(413, f"more than {BATCH_MAX:,} messages in a batch", outcome="not sent")
        self._parts.append(
            await submit(self._publisher, self._destination, wanted, self._admit_wait_s)
        )
        self._count += 1

    async def add_all(self, payloads: list[bytes | Message]) -> None:
        """Publish several, behind those before. Raises Problem: the first without an end is not sent."""
        if len(payloads) + self._count > BATCH_MAX or not self._has_room(payloads):
            for each in payloads:
                message = Message(body=each) if isinstance(each, bytes) else each
                await self.add(Wanted(message, {}, self._timeout_s))
            return
        self._parts.append(asyncio.create_task(self._send(payloads)))
        self._count += len(payloads)
        # It hands all over in its first step: what is added next goes behind.
        await asyncio.sleep(0)

    def _has_room(self, payloads: list[bytes | Message]) -> bool:
        """Return whether the publisher takes all of them without waiting, as far as it says."""
        config = self._publisher.config
        size = sum(len(each if isinstance(each, bytes) else each.body) for each in payloads)
        waiting = self._publisher.stats().backlog
        return (
            not config.redundant
            and len(payloads) > 1
            and size <= min(GROUP_BYTES_MAX, config.backlog_bytes_max // 2)
            and waiting + len(payloads) <= config.backlog_messages_max // 2
        )

    async def _send(self, payloads: list[bytes | Message]) -> list[Published]:
        try:
            return await self._publisher.send_many(
                self._destination, payloads, timeout_s=self._timeout_s
            )
        except (BacklogFull, Stopped) as fault:
            # Those before it have their ends, the rest was not sent.
            ends = list(fault.ends)
            rest = [each.message_id if isinstance(each, Message) else "" for each in payloads]
            return ends + [
                Published(
                    message_id, Outcome.REFUSED, Durability.NONE, attempts=0, reason=str(fault)
                )
                for message_id in rest[len(ends) :]
            ]

    async def ends(self) -> list[Published]:
        """Wait for all ends."""
        found: list[Published] = []
        for part in self._parts:
            end = await part
            if isinstance(end, list):
                found += end
            else:
                found.append(end)
        return found


def read_line(line: bytes) -> tuple[bytes | Message, Options]:
    """Read one line of a batch, an envelope: its payload and its options. Raises MessageInvalid."""
    return read_entry(_json(line))


def read_entry(entry: Any) -> tuple[bytes | Message, Options]:
    """Read an envelope: its payload and its options. Raises MessageInvalid."""
    if not isinstance(entry, dict):
        raise MessageInvalid("an object wanted")
    body: Any = entry.get("body", b"")
    if len(entry) == 1 and type(body) is str:  # the usual case: a Message costs 3 us
        return _checked(_utf8(body)), {}
    options: Options = {}
    fields: dict[str, Any] = {}
    for name, value in entry.items():
        if name == "body":
            if not isinstance(value, str) or "body_base64" in entry:
                raise MessageInvalid("body: a text wanted, and no body_base64 beside it")
            body = _utf8(value)
        elif name == "body_base64":
            try:
                body = base64.b64decode(value, validate=True)
            except (ValueError, TypeError):
                raise MessageInvalid("body_base64: not Base64") from None
        elif name in _FIELDS:
            fields["message_id" if name == "id" else name] = value
        elif name == "delay_s":
            options["deliver_after_s"] = _seconds_of(name, value, DELAY_S_MAX)
        elif name == "ttl_s":
            options["ttl_s"] = _seconds_of(name, value, TTL_S_MAX)
        elif name not in _IGNORED:
            raise MessageInvalid(f"{name[:40]!r}: no such member")
    if str(fields.get("reply_to", "")).startswith(_OWN):
        raise MessageInvalid(_OWN_REFUSED)
    message_id = fields.get("message_id", "")
    if message_id != "" and not (isinstance(message_id, str) and KEY_FORM.fullmatch(message_id)):
        raise MessageInvalid("id: 1 to 128 of A-Z a-z 0-9 . _ : -")
    return Message(body=_checked(body), **fields), options


def _seconds_of(name: str, value: object, most: float) -> float:
    """Return a member's seconds. Raises MessageInvalid."""
    try:
        return read_number(None if isinstance(value, str) else value, 0, most)
    except ValueError:
        raise MessageInvalid(f"{name}: 0 to {most:,} seconds") from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a pair, by an escape
        raise MessageInvalid("body: no text in UTF-8") from None


def _checked(body: bytes) -> bytes:
    if len(body) > BODY_BYTES_MAX:
        raise MessageInvalid(f"body of {len(body)} bytes: at most {BODY_BYTES_MAX}")
    return body


def answer_batch(ends: list[Published], stopped: Problem | None) -> tuple[int, bytes]:
    """Return status and body of a batch's answer. 201 if all were read and each is confirmed."""
    confirmed = sum(end.outcome is Outcome.CONFIRMED for end in ends)
    if confirmed == len(ends) and stopped is None:
        brokers = {each: json.dumps(each) for each in {end.broker for end in ends}}
        messages = ",".join(
            [
                f'{{"id":{json.dumps(end.message_id)},"outcome":"confirmed","broker":{brokers[end.broker]}}}'
                for end in ends
            ]
        )
        return 201, f'{{"confirmed":{confirmed},"messages":[{messages}]}}'.encode()
    messages_json = [end_as_json(end) for end in ends]
    body: dict[str, Any] = {"confirmed": confirmed, "messages": messages_json}
    if stopped is not None:
        return stopped.status, encoded(stopped.body | body)
    failed = {problem_of(end).status for end in ends if end.outcome is not Outcome.CONFIRMED}
    status = 504 if 504 in failed else failed.pop() if len(failed) == 1 else 503
    detail = f"{len(ends) - confirmed} of {len(ends)} messages are not confirmed"
    outcome = {504: "unknown", 404: "unroutable"}.get(status, "refused")
    problem = Problem(status, detail, outcome=outcome, retry=status not in (403, 404)).body
    return status, encoded(problem | body)
