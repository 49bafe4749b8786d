"""The place of one message, by evidence: each line says how it is known, and nothing is taken from a queue.

Pure. Certain are parked messages and rows of a recording. A queue that is empty does not hold it. Where
messages wait, the age of the oldest tells: queues hand out in order, so a message that came earlier than the
oldest one has left. Ages are counted by agents every 10 s since their start, so this is a deduction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from messagebus.observing.snapshot import Bus, Row
from messagebus.terminal import duration, plural

# The earliest time at which the oldest message may have come, before the one that its agent tells.
AGE_MARGIN_MS, AGE_MARGIN_SHARE = 20_000, 0.1
PLACES_MAX, NAMES_MAX, CHARS_MAX = 10, 5, 200
PREFIX_DIGITS, ID_DIGITS = 20, 32
HEX = frozenset("0123456789abcdef")

# What a handler's client tells of a delivery that does not come again to this subscription.
NOT_STORED = frozenset({"published: refused", "published: unroutable"})
ENDED = frozenset({"handled: ack", "handled: drop", "not handled: duplicate"})

Verdict = Literal[
    "parked", "done", "published", "refused", "delivered", "waits", "may wait", "absent", "id", "?"
]


@dataclass(frozen=True, slots=True)
class Line:
    """One piece of evidence. about: a subscription or queue, or "". known: the source of it, in words."""

    verdict: Verdict
    text: str
    known: str
    about: str = ""
    broker: str = ""
    at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was found out about one id, or the beginning of one.

    parked: as `messagebus.admin.read_parked` returns them. recorded: rows of a recording, with ``at_ms``.
    trail: rows that clients reported to the agents' trails.
    published_ms: since 1970, as somebody said. topic: as somebody said. faults: places that could not be
    looked at -> why.
    """

    id: str
    parked: Sequence[Any] = ()
    recorded: Sequence[Mapping[str, Any]] = ()
    trail: Sequence[Mapping[str, Any]] = ()
    published_ms: int | None = None
    topic: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """An answer in one sentence, and the evidence for it."""

    answer: str
    lines: tuple[Line, ...]


def trace(evidence: Evidence, bus: Bus) -> Trace:
    """Conclude where a message is."""
    lines = [*_of_id(evidence.id), *_of_recorded(evidence), *_of_trail(evidence)]
    lines += _of_parked(evidence)
    if not any(each.verdict == "parked" for each in lines):
        lines += _of_waiting(evidence, bus)
    lines += [
        Line("?", f"{where} could not be looked at: {why}"[:CHARS_MAX], "its error")
        for where, why in evidence.faults.items()
    ]
    lines += [
        Line("?", f"{each.broker} is silent: {each.fault or 'no link'}"[:CHARS_MAX], "its agent")
        for each in bus.brokers
        if each.answer is None or not each.answer.state.linked
    ]
    return Trace(_answer(lines), tuple(lines))


def _answer(lines: Sequence[Line]) -> str:
    by: dict[str, list[Line]] = {}
    for each in lines:
        by.setdefault(each.verdict, []).append(each)
    told = [f"Parked in {each.about} on {each.broker}" for each in by.get("parked", ())]
    told += [f"Finished in {each.about}" for each in by.get("done", ())]
    told += [each.text for each in by.get("refused", ())]
    if waits := by.get("may wait"):
        places = [f"{each.about} on {each.broker}" for each in waits]
        more = f" and {len(places) - NAMES_MAX} more places" if len(places) > NAMES_MAX else ""
        told.append(f"It might wait in {', '.join(places[:NAMES_MAX])}{more}")
    elif by.get("absent") and not told:
        told.append("It does not wait anywhere that answers")
    if not told:
        told.append("There is no record of it")
    if by.get("?"):
        told.append("some places could not be looked at")
    return f"{'; '.join(told[:PLACES_MAX])}."


def _of_id(id: str) -> list[Line]:
    if len(id) != ID_DIGITS or not HEX.issuperset(id):
        return []
    number = int(id[PREFIX_DIGITS:], 16) + 1
    text = f"number {number:,} of one publishing process, whose ids begin with {id[:PREFIX_DIGITS]}"
    return [Line("id", text, "the form of the id, if a client of messagebus made it")]


def _of_parked(evidence: Evidence) -> list[Line]:
    lines = []
    for each in evidence.parked:
        runs = "" if each.attempts is None else f", after {plural(each.attempts, 'run')}"
        cause = f": {each.exception}" if each.exception else ""
        text = f"{each.reason}{runs}{cause}"
        if each.message_id != evidence.id:
            text = f"{each.message_id}: {text}"
        known = "the message itself, read in its parking queue"
        lines.append(
            Line("parked", text[:CHARS_MAX], known, each.name, each.broker, each.parked_ms)
        )
    return lines


def _of_recorded(evidence: Evidence) -> list[Line]:
    lines = []
    for row in evidence.recorded:
        broker, at_ms, known = str(row.get("broker", "")), row.get("at_ms"), "a recording"
        if "outcome" in row:
            text = f"{row['outcome']} to {row.get('topic')}, by {row.get('publisher')}"
            lines.append(Line("published", text[:CHARS_MAX], known, "", broker, at_ms))
        else:
            about = str(row.get("subscription", ""))
            about = about if "/" in about or ":" in about else f"{row.get('topic')}/{about}"
            verdict: Verdict = "done" if row.get("ack") == "acked" else "delivered"
            text = f"{row.get('ack')}, by {row.get('consumer')}"
            lines.append(Line(verdict, text[:CHARS_MAX], known, about, broker, at_ms))
    return lines


def _of_trail(evidence: Evidence) -> list[Line]:
    lines = []
    for row in evidence.trail:
        what, who = row.get("what", ""), row.get("client", "a client")
        is_publish, error = what.startswith("published"), row.get("error")
        runs = f", run {attempt}" if (attempt := row.get("attempt", 0)) > 1 else ""
        text = f"{what}{runs}, by {who}{f': {error}' if error else ''}"
        if row.get("message_id") != evidence.id:
            text = f"{row.get('message_id')}: {text}"
        verdict: Verdict = "done" if what in ENDED else "published" if is_publish else "delivered"
        if what in NOT_STORED:
            verdict, text = "refused", f"Its publisher {who} was told: {what.split()[1]}"
        known = f"that client told it, in the trail at {row.get('agent')}"
        place = row.get("name", ""), row.get("broker", ""), row["at_ms"]
        lines.append(Line(verdict, text[:CHARS_MAX], known[:CHARS_MAX], *place))
    return lines


# Waiting.


def _publish_of(evidence: Evidence) -> tuple[str, int | None]:
    """Return topic or queue of a message, "" when not known, and the time of its first publish."""
    told = [r for r in evidence.trail if r.get("what", "").startswith("published")]
    topics = [str(r["topic"]) for r in evidence.recorded if "topic" in r]
    topics += [r["name"].removeprefix("queue:") for r in told if r.get("name")]
    published = [r["at_ms"] for r in evidence.recorded if "outcome" in r and r.get("at_ms")]
    published += [r["at_ms"] for r in told]
    since_ms = evidence.published_ms or min(published, default=None)
    return evidence.topic or next(iter(topics), ""), since_ms


def _of_waiting(evidence: Evidence, bus: Bus) -> list[Line]:
    topic, since_ms = _publish_of(evidence)
    may, absent = list[tuple[int, Line]](), dict[str, list[str]]()
    for broker, answer in bus.answers.items():
        if not answer.state.linked:
            continue
        for row in answer.rows.values():
            if row.kind not in ("sub", "queue", "delay") or not _concerns(row, topic):
                continue
            counted_ms = max(row.counted_at_ms, answer.counted_at_ms or 0)
            line = _of_row(row, broker, since_ms, counted_ms, bus.at_ms)
            if line.verdict == "may wait":
                may.append((row.waiting, line))
            else:
                absent.setdefault(line.known, []).append(f"{row.name} on {broker}")
    may.sort(key=lambda each: (-each[0], each[1].about, each[1].broker))
    lines = [line for _, line in may[:PLACES_MAX]]
    if len(may) > PLACES_MAX:
        text = f"{len(may) - PLACES_MAX:,} more places; name its topic to see fewer"
        lines.append(Line("may wait", text, "counts of the agents", "others", "others"))
    for known, places in absent.items():
        some = ", ".join(places[:NAMES_MAX]) if len(places) <= NAMES_MAX else ""
        text = f"not in {some}" if some else f"not in {len(places):,} queues of this kind"
        lines.append(Line("absent", text, known))
    return lines


def _concerns(row: Row, topic: str) -> bool:
    name = row.name.partition("/")[0] if row.kind == "sub" else row.name
    return not topic or row.kind == "delay" or name in (topic, f"queue:{topic}")


def _of_row(row: Row, broker: str, since_ms: int | None, counted_ms: int, now_ms: int) -> Line:
    if not row.waiting and (since_ms is None or since_ms < counted_ms):
        return Line("absent", "", "empty, by its agent's last count", row.name, broker)
    if not row.waiting:
        text = "empty, but counted before it was published"
        return Line("may wait", text, "counts of the agents", row.name, broker)
    waiting = f"{row.ready:,} ready, {row.unacked or 0:,} being handled"
    if row.kind == "delay" or since_ms is None or row.oldest_at_ms is None:
        why = "" if since_ms else "; the time of its publish would narrow this down"
        text = f"{waiting}{why}"
        return Line("may wait", text, "counts of the agents", row.name, broker)
    margin_ms = max(AGE_MARGIN_MS, int((now_ms - row.oldest_at_ms) * AGE_MARGIN_SHARE))
    if since_ms < row.oldest_at_ms - margin_ms:
        known = "the oldest there came later, by its agent's counts since its start (deduced)"
        return Line("absent", "", known, row.name, broker)
    age = duration((now_ms - row.oldest_at_ms) / 1_000)
    text = f"{waiting}; the oldest waits for {age} or more"
    return Line("may wait", text, "counts and ages of the agents", row.name, broker)


def rows_of(trace: Trace) -> Iterable[dict[str, Any]]:
    """Return the lines as JSON has them."""
    return (
        {
            "verdict": each.verdict,
            "about": each.about,
            "broker": each.broker,
            "at_ms": each.at_ms,
            "text": each.text,
            "known": each.known,
        }
        for each in trace.lines
    )
