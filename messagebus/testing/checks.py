"""Assertions about a bus in memory; their failures say what did happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from messagebus.destination import Destination, Source, Subscription
from messagebus.errors import WrongPayload
from messagebus.message import Message
from messagebus.testing.brokers import MemoryBrokers

__all__ = ["answered", "parked", "published", "unhandled"]

# Entries shown in a failure: enough to see what is wrong.
SHOWN_MAX = 10
BODY_SHOWN_MAX = 120


def published(
    brokers: MemoryBrokers,
    destination: Destination,
    count: int | None,
    where: Callable[[Message], bool] | None,
    fields: Mapping[str, object],
) -> list[Message]:
    """Return the matching messages. Raises AssertionError unless there are as many as wanted, TypeError."""
    there = brokers.published(destination, "confirmed")
    found = [each for each in there if _matches(each, fields) and (where is None or where(each))]
    if _enough(found, count):
        return found
    wanted = "".join(f" {name}={value!r}" for name, value in fields.items())
    told = [
        f"{_counted(count)}{wanted or ' message(s)'} wanted on {destination}, {len(found)} found"
    ]
    told += _listed(f"published to {destination}", [_line(each) for each in there])
    for outcome, why in (
        ("unroutable", f"nobody subscribes: declare({_a_reader(destination)!r})"),
        ("refused", "as refuse_next says"),
    ):
        if lost := len(brokers.published(destination, outcome)):
            told.append(f"{lost} more {outcome}: {why}")
    if not there:
        told += _listed("published elsewhere", _elsewhere(brokers))
    raise AssertionError("\n".join(told))


def answered(brokers: MemoryBrokers, source: Source, answer: str, count: int | None) -> list[str]:
    """Return the ids of deliveries with this answer. Raises AssertionError unless as many as wanted."""
    if answer not in ANSWERS:
        raise ValueError(f"answer {answer!r}: one of {', '.join(ANSWERS)}")
    there = brokers.answers(source)
    found = [message_id for message_id, given in there if given == answer]
    if _enough(found, count):
        return found
    told = [f"{_counted(count)} {answer}(s) wanted from {source}, {len(found)} found"]
    told += _listed("answers", [f"{given} {message_id}" for message_id, given in there])
    told.append(_state(brokers, source))
    raise AssertionError("\n".join(told))


ANSWERS = ("ack", "requeue", "reject", "retry", "park")


def parked(brokers: MemoryBrokers, source: Source, count: int | None) -> list[Message]:
    """Return the parked messages. Raises AssertionError unless there are as many as wanted."""
    found = brokers.parked_messages(source)
    if _enough(found, count):
        return found
    told = [f"{_counted(count)} parked message(s) wanted of {source}, {len(found)} found"]
    told += _listed("parked", [_line(each) for each in found])
    answers = [f"{given} {message_id}" for message_id, given in brokers.answers(source)]
    told += _listed("answers", answers)
    told.append(_state(brokers, source))
    raise AssertionError("\n".join(told))


def unhandled(brokers: MemoryBrokers, timeout_s: float) -> str:
    """Return the error's text when not everything was answered in time."""
    told = [f"not everything was answered within {timeout_s:g} s"]
    for queue, (ready, unacked) in sorted(brokers.open_work().items()):
        told.append(f"  {queue}: {ready} waiting, {unacked} delivered without an answer")
    return "\n".join(told)


# Inside.
def _enough(found: Sequence[object], count: int | None) -> bool:
    return bool(found) if count is None else len(found) == count


def _counted(count: int | None) -> str:
    return "at least 1" if count is None else str(count)


def _matches(message: Message, fields: Mapping[str, object]) -> bool:
    return all(_field(message, name) == value for name, value in fields.items())


def _field(message: Message, name: str) -> object:
    try:
        match name:
            case "text":
                return message.as_text()
            case "json":
                return message.as_json()
            case "headers":
                return dict(message.headers)
    except WrongPayload:
        return None
    if name not in Message.__slots__:
        raise TypeError(f"{name!r} is no field of a message; there are {', '.join(FIELDS)}")
    return getattr(message, name)


FIELDS = ("text", "json", *Message.__slots__)


def _line(message: Message) -> str:
    body = repr(message.body[:BODY_SHOWN_MAX])
    more = " ..." if len(message.body) > BODY_SHOWN_MAX else ""
    key = f" key={message.key!r}" if message.key else ""
    headers = f" headers={dict(message.headers)!r}" if message.headers else ""
    return f"{message.message_id}{key}{headers} {body}{more}"


def _listed(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return [f"{title}: nothing"]
    shown = [f"  {line}" for line in lines[:SHOWN_MAX]]
    more = [f"  ... and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else []
    return [f"{title}: {len(lines)}", *shown, *more]


def _elsewhere(brokers: MemoryBrokers) -> list[str]:
    return [
        f"{exchange.removeprefix('mb.topic/').replace('mb.queue/', 'queue:')}: {count} {outcome}"
        for (exchange, outcome), count in sorted(brokers.destinations().items())
    ]


def _a_reader(destination: Destination) -> str:
    return f"{destination}/test"


def _state(brokers: MemoryBrokers, source: Source) -> str:
    name = str(source) if isinstance(source, Subscription) else source.name
    return (
        f"{name}: {brokers.waiting(source)} waiting, {brokers.unacked(source)} without an answer, "
        f"{len(brokers.parked(source))} parked; {brokers.delayed()} delayed on the whole bus"
    )
