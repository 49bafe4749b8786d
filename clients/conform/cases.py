"""The cases: what a client must do, case by case. Each makes its trouble and judges by ids.

A case is a function of a `Stage` that raises Wrong. Numbers and texts are those of
docs/reference/conformance.md.
"""

from __future__ import annotations

import hashlib
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika

from clients.conform.lies import LIES, lie
from clients.conform.lists import ListRequest
from clients.conform.program import Event, Program, Wrong, must
from clients.conform.stage import Stage
from clients.conform.witness import BATCH_TYPE, Encoded, Held, batch_of, body_of

ATTACH_S = 5.0
AGAIN_MAX = 5
# A broker that does not answer may hold the word back for so long.
APPLIED_HOLD_S = 1.0
# Six of it are a handshake, which a client may give up after 0.5 s.
HANDSHAKE_DELAY_S = 0.05
# From the end of a dial that failed, at the client, to the proxy's notice of it.
ENDED_S = 0.5
LET_GO_S = 0.5
# By the sixth dial 3.1 s have passed at most after failed dials, 15.5 s at least after refused logins.
DIALS, DIALS_WITHIN_S = 6, 4.0
# The fifth comes 7.5 s after the first at the earliest.
REFUSED_DIALS_MAX, REFUSED_FOR_S = 4, 5.0
LOGIN_REFUSED = re.compile(r"login (was )?refused|access[_-]refused", re.I)
MUST, SHOULD = "must", "should"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case. alone: it breaks brokers, so no other runs beside it; it needs a local cluster."""

    number: int
    level: str
    promise: str
    run: Callable[[Stage], str | None]
    alone: bool = False
    extra: tuple[str, ...] = ()
    """The items that it registers beside its topic and subscription; {} stands for the topic."""

    @property
    def name(self) -> str:
        return self.run.__name__


CASES: list[Case] = []


def case(
    promise: str, *, level: str = MUST, alone: bool = False, extra: tuple[str, ...] = ()
) -> Callable[[Callable[[Stage], str | None]], Callable[[Stage], str | None]]:
    """Enter a function into CASES. Its return value is shown beside the result."""

    def enter(run: Callable[[Stage], str | None]) -> Callable[[Stage], str | None]:
        number = len(CASES) + 1
        CASES.append(
            Case(number=number, level=level, promise=promise, run=run, alone=alone, extra=extra)
        )
        return run

    return enter


@case("a message that is reported confirmed is stored, also when the broker is killed", alone=True)
def confirmed_is_stored(stage: Stage) -> None:
    stage.front.target = stage.bus.brokers[2]
    early, late = stage.ids(200), stage.ids(20, "late")
    with stage.program() as program:
        program.publish(stage.topic, early)
        program.until(lambda: len(program.outcomes()) >= 50, 10, "50 outcomes")
        program.settled(early)
        # These do not arrive any more, and then the broker is gone.
        stage.front.mute = True
        program.publish(stage.topic, late)
        program.never(
            lambda: "confirmed" in _ends(program, late), 0.5, "confirmed what no broker has seen"
        )
        stage.bus.local.kill("mb3")
        stage.front.target = stage.bus.brokers[0]
        stage.front.cut()
        stage.front.heal()
        ends = _until_known(program, stage.topic, late)
        stage.bus.local.start("mb3")
        stage.bus.local.wait_ready()
    confirmed = {each for each in early if "confirmed" in program.outcomes()[each]}
    confirmed |= {each for each, end in ends.items() if end == "confirmed"}
    must(len(confirmed) == len(early) + len(late), f"only {len(confirmed)} of 220 ever confirmed")
    stored = {each.id for each in stage.witness.take(stage.queue)}
    must(confirmed <= stored, f"{len(confirmed - stored)} told confirmed are on no broker")


@case("a message that no queue took is reported unroutable", extra=("{}none",))
def unroutable_is_reported(stage: Stage) -> None:
    good, lost = stage.ids(150), stage.ids(150, "none")
    with stage.program() as program:
        for at in range(0, 150, 10):
            program.publish(stage.topic, good[at : at + 10])
            program.publish(f"{stage.topic}none", lost[at : at + 10])
        ends = _last_ends(program, stage.topic, good)
        ends |= _last_ends(program, f"{stage.topic}none", lost)
        must(program.stop() == 0, "did not end with code 0")
    wrong = [e for e in good if ends[e] != "confirmed"] + [
        e for e in lost if ends[e] != "unroutable"
    ]
    must(not wrong, f"{len(wrong)} wrong outcomes, such as {ends[wrong[0]] if wrong else ''}")
    many = [
        each
        for each, told in program.outcomes().items()
        if len(told) != 1 and "unknown" not in told
    ]
    must(not many, f"{len(many)} publishes have several outcomes")
    must({h.id for h in stage.witness.take(stage.queue)} == set(good), "not the published ids")


@case("a publish without an answer is not reported confirmed; again means the same id")
def unknown_is_visible(stage: Stage) -> None:
    first, ids = stage.ids(3, "first"), stage.ids(20)
    with stage.program() as program:
        program.publish(stage.topic, first)
        program.settled(first)
        stage.front.deaf = True
        program.publish(stage.topic, ids)
        program.until(lambda: stage.witness.ready(0, stage.queue) >= 23, 10, "the broker has them")
        stage.front.refusing = True
        stage.front.cut()
        program.never(
            lambda: {"confirmed", "unroutable"} & _ends(program, ids),
            1,
            "told an outcome of which it cannot know",
        )
        stage.front.heal()
        _until_known(program, stage.topic, ids)
    held = stage.witness.take(stage.queue)
    must({each.id for each in held} == {*first, *ids}, "published again under another id")
    bodies = all(each.body == body_of(each.id) for each in held)
    must(bodies, "published again with another body")


@case(f"{len(LIES)} lists that lie change nothing")
def lies_change_nothing(stage: Stage) -> str:
    with stage.consuming() as program:
        opened = [proxy.opened for proxy in stage.proxies]
        for name in LIES:
            before = stage.lists.lies_served
            stage.lists.lie(lie(name, stage))
            program.until(
                lambda before=before: stage.lists.lies_served > before,  # type: ignore[misc]
                15,
                f"a fetch of the list {name!r}",
            )
            generation = stage.list_brokers(0, 1, 2)
            program.until(
                lambda wanted=generation: stage.lists.applied() >= wanted,  # type: ignore[misc]
                15,
                f"the good list after {name!r}",
            )
            must(
                stage.lists.applied() == generation
                and stage.lists.requests[-1].generation <= generation,
                f"believed the list {name!r}",
            )
            same = [proxy.opened for proxy in stage.proxies] == opened
            must(same and all(p.connections for p in stage.proxies), f"acted on the list {name!r}")
        _flows(stage, program)
    return f"{len(LIES)} lists"


@case("a broker that is added is consumed from within 5 s, and applied is not reported before")
def added_is_consumed(stage: Stage) -> str:
    stage.list_brokers(0, 1)
    early: list[bool] = []
    with stage.consuming(brokers=(0, 1)) as program:
        wanted = stage.lists.generation + 1
        served_s: list[float] = []

        def note(request: ListRequest) -> None:
            # A publisher that follows the list has nothing to apply.
            if request.subscription and request.applied >= wanted and not early:
                late = request.at_s - served_s[0] > APPLIED_HOLD_S
                early.append(not late and stage.proxies[2].consumers == consumers)

        consumers = stage.proxies[2].consumers
        stage.lists.on_request = note
        stage.proxies[2].delay_s = HANDSHAKE_DELAY_S
        stage.witness.publish(2, stage.queue, stage.ids(5))
        served_s.append(time.monotonic())
        stage.list_brokers(0, 1, 2)
        took_s = program.received(stage.ids(5), ATTACH_S)
        program.until(lambda: early, 15, "applied told for the new list")
        if early[0]:
            # A client sees the end of a dial that failed before the proxy does.
            program.until(
                lambda: stage.proxies[2].ended > 0,
                ENDED_S,
                "the end of a dial that failed, nor a consumer there: it told applied before",
            )
        asks = [each for each in stage.lists.requests if each.subscription]
        must(all(a.client and len(a.client) <= 255 for a in asks), "client= is empty or too long")
        must(any(a.subscription == stage.subscription for a in asks), "subscription= is not told")
        must(all(a.has_login for a in asks), "client= is told without a login: no agent counts it")
        stage.nothing_left(program)
    return f"attached in {took_s:.2f} s"


@case("a draining broker is consumed empty, a removed one let go when its deliveries are answered")
def removed_is_let_go(stage: Stage) -> None:
    with stage.consuming(auto="") as program:
        opened = [stage.proxies[b].opened for b in (0, 2)]
        stage.list_brokers(0, 1, 2, draining=[1])
        stage.witness.publish(1, stage.queue, stage.ids(4))
        program.received(stage.ids(4))
        program.ack(*program.deliveries[:2])
        generation = stage.list_brokers(0, 2)
        stage.known(program, generation)
        must(stage.proxies[1].connections, "hung up with deliveries that are not answered")
        stage.witness.publish(1, stage.queue, stage.ids(1, "after"))
        program.ack(*program.deliveries[2:4])
        program.until(lambda: not stage.proxies[1].connections, 10, "the end of its connection")
        must(stage.ids(1, "after")[0] not in program.ids, "consumed from a broker that was removed")
        left = [held.id for held in stage.witness.take(stage.queue, 1)]
        must(left == stage.ids(1, "after"), f"acks were lost: {left}")
        same = [stage.proxies[b].opened for b in (0, 2)] == opened
        must(same, "dialled the others anew")


@case("a broker that comes back to the list is consumed again")
def readded_is_consumed(stage: Stage) -> str:
    with stage.consuming() as program:
        stage.list_brokers(0, 2)
        stage.detached(program, 1)
        stage.witness.publish(1, stage.queue, stage.ids(5))
        stage.list_brokers(0, 1, 2)
        took_s = program.received(stage.ids(5), ATTACH_S)
        stage.nothing_left(program)
    return f"attached in {took_s:.2f} s"


@case("a frozen broker delays no other, when it freezes and at the start")
def frozen_delays_no_other(stage: Stage) -> str:
    stage.proxies[1].frozen = True
    ids = stage.ids(4, "start")
    for broker in (0, 2):
        stage.witness.publish(broker, stage.queue, ids[broker : broker + 2])
    with stage.consuming(brokers=(0, 2)) as program:
        program.received(ids, ATTACH_S)
        stage.proxies[1].frozen = False
        stage.attached(program, 1, within_s=30)
        stage.proxies[1].frozen = True
        stage.witness.publish(1, stage.queue, stage.ids(5, "stuck"))
        took_s = 0.0
        for turn in range(3):
            ids = stage.ids(10, f"t{turn}-")
            stage.witness.publish(2 * (turn % 2), stage.queue, ids)
            took_s = max(took_s, program.received(ids, 3))
        stage.proxies[1].frozen = False
        program.received(stage.ids(5, "stuck"), 30)
    return f"longest {took_s:.2f} s"


@case(
    "a delivery is answered on the link that gave it, or nowhere; none comes twice without trouble"
)
def answers_stay_on_their_link(stage: Stage) -> None:
    quiet, five = stage.ids(60), stage.ids(5, "old")
    with stage.consuming(auto="") as program:

        def latest() -> list[Event]:
            return [e for e in program.deliveries if e["delivered"] in five][-len(five) :]

        def came(times: int) -> bool:
            return all(program.ids.count(each) >= times for each in five)

        for broker in range(3):
            stage.witness.publish(broker, stage.queue, quiet[broker::3])
        program.received(quiet)
        must(sorted(program.ids) == sorted(quiet), "some came twice")
        program.ack(*program.deliveries)
        program.until(
            lambda: all(program.answered(each) for each in program.deliveries), 10, "its answers"
        )
        stage.witness.publish(0, stage.queue, five)
        program.received(five)
        old = latest()
        # Acks that are still under way are lost with it, and their deliveries come again.
        stage.proxies[0].cut()
        program.until(lambda: came(2), 15, "the five again")
        opened = stage.proxies[0].opened
        program.ack(*old)
        program.never(
            lambda: stage.proxies[0].opened > opened, 1, "answered old deliveries on the new link"
        )
        stale = [program.answered(each) for each in old]
        must(not any(a and a["ok"] for a in stale), "told that the ack of a lost delivery was sent")
        stage.proxies[0].cut()
        program.until(lambda: came(3), 15, "the five once more: not acked")
        program.ack(*latest(), *(e for e in program.deliveries[60:] if e["delivered"] in quiet))
        stage.nothing_left(program)


@case("no more than the prefetch is held of one broker")
def prefetch_bounds(stage: Stage) -> str:
    ids = stage.ids(120)
    for broker in range(3):
        stage.witness.publish(broker, stage.queue, ids[broker::3])
    with stage.consuming(prefetch=5, auto="") as program:
        answered, most = 0, 0
        while answered < len(ids):
            program.until(lambda a=answered: len(program.deliveries) > a, 10, "more deliveries")  # type: ignore[misc]
            time.sleep(0.02)
            held = program.deliveries[answered:]
            per = [sum(h["broker"] == b for h in held) for b in {h["broker"] for h in held}]
            # What it holds without having told of it is not ready at the broker either.
            ready = (
                sum(stage.witness.ready(b, stage.queue) for b in range(3)) if not answered else 0
            )
            must(not ready or len(ids) - ready <= 15, "took more than its prefetch from a broker")
            most = max(most, *per)
            program.ack(*held)
            answered += len(held)
        must(most <= 5, f"held {most} of one broker with a prefetch of 5")
        stage.nothing_left(program)
    return f"most {most}"


@case("batches are taken apart, and acked when all entries are answered")
def batches_are_taken_apart(stage: Stage) -> str:
    *ids, beside, behind = stage.ids(5)
    entries = [
        (_entry(ids[0], "text/plain", {"mb-key": "k1", "n": 7}), b"one"),
        (_entry(ids[1], None, None), b""),
        (_entry(ids[2], "application/json", {"deep": {"list": [1, "two", True]}}), b"{}"),
    ]
    outer = pika.BasicProperties(
        content_type=BATCH_TYPE, delivery_mode=2, message_id=ids[0], timestamp=1_700_000_000
    )
    with stage.consuming(auto="", prefetch=2) as program:
        stage.witness.publish_raw(0, stage.queue, outer, batch_of(entries))
        stage.witness.publish(0, stage.queue, [beside, behind])
        program.received([*ids, beside])
        one, two, three = (next(d for d in program.deliveries if d["delivered"] == i) for i in ids)
        must(one["key"] == "k1" and one["headers"].get("n") == 7, "headers of the first entry")
        must(three["headers"].get("deep") == {"list": [1, "two", True]}, "a nested table")
        must(two["content_type"] == "application/octet-stream", "an entry without content type")
        for told, (_, body) in zip((one, two, three), entries, strict=True):
            must(told["sha256"] == hashlib.sha256(body).hexdigest(), "the body of an entry")
        program.ack(one, two)
        program.until(lambda: program.answered(two), 5, "answers to two entries")
        program.ack(next(d for d in program.deliveries if d["delivered"] == beside))
        # It comes when that ack has arrived, and so has an ack of the batch that should not be.
        program.received([*ids, beside, behind])
        stage.proxies[0].cut()
        program.until(
            lambda: program.ids.count(ids[2]) == program.ids.count(behind) == 2,
            15,
            "the entry without an answer again, and what follows",
        )
        again = program.deliveries[len(ids) + 2 :]
        third = next(d for d in again if d["delivered"] == ids[2])
        program.do("retry", tag=third["tag"], delay_ms=0, reason="later")
        # The copy needs room in the prefetch.
        program.ack(*(d for d in again if d is not third))
        program.until(lambda: program.ids.count(ids[2]) >= 3, 10, "the copy of one entry")
        copy = program.deliveries[-1]
        must(copy["attempt"] == 2 and copy["headers"].get("deep"), "the copy of an entry")
        program.ack(copy)
        broken = pika.BasicProperties(content_type=BATCH_TYPE, delivery_mode=2, message_id="broken")
        stage.witness.publish_raw(0, stage.queue, broken, b"\0\0\0\x07no such row")
        program.until(
            lambda: any(stage.witness.ready(b, stage.park) for b in range(3)),
            10,
            "the broken batch in the parking queue",
        )
        must("broken" not in program.ids, "delivered a body that is no batch")
        compressed = _compressed_batch(stage, program)
        stage.nothing_left(program)
    return compressed


def _compressed_batch(stage: Stage, program: Program) -> str:
    """Publish a compressed batch: all of it is delivered, or it is parked whole."""
    ids = stage.ids(3, "packed")
    whole = batch_of([(_entry(each, "text/plain", None), each.encode() * 20) for each in ids])
    outer = pika.BasicProperties(
        content_type=BATCH_TYPE,
        content_encoding="deflate",
        headers={"mb-size": len(whole), "mb-crc": zlib.crc32(whole)},
        delivery_mode=2,
        message_id=ids[0],
        timestamp=1_700_000_000,
    )

    def parked() -> int:
        return sum(stage.witness.ready(broker, stage.park) for broker in range(3))

    before = parked()
    stage.witness.publish_raw(0, stage.queue, outer, zlib.compress(whole))
    program.until(
        lambda: {*ids} <= {*program.ids} or parked() > before,
        10,
        "a compressed batch, taken apart or in the parking queue",
    )
    came = [each for each in program.deliveries if each["delivered"] in ids]
    if not came:
        return "parks compressed batches"
    must(parked() == before and len(came) == len(ids), "a part of a compressed batch")
    for each in came:
        body = each["delivered"].encode() * 20
        must(each["sha256"] == hashlib.sha256(body).hexdigest(), "a body that was compressed")
    program.ack(*came)
    return "reads compressed batches"


@case("a retry is a copy to the own queue, confirmed before the ack", extra=("{}/other",))
def retry_copies_first(stage: Stage) -> None:
    (first,) = stage.ids(1)
    other = f"mb.sub/{stage.topic}/other"
    with stage.consuming(auto="") as program:
        program.publish(stage.topic, [first], key="k", headers={"shop": "12"})
        program.received([first])
        began_ms = time.time() * 1000
        program.do("retry", tag=program.deliveries[0]["tag"], delay_ms=1000, reason="busy")
        program.until(lambda: program.ids.count(first) == 2, 15, "the next run")
        copy = program.deliveries[1]
        must(copy["attempt"] == 2, f"attempt is {copy['attempt']}")
        must(copy["key"] == "k" and copy["headers"].get("shop") == "12", "headers are lost")
        must(
            sum(stage.witness.ready(b, other) for b in range(3)) == 1, "another subscription has it"
        )
        program.process.kill()
        program.process.wait()
    held = _taken(program, stage, stage.queue)
    must(len(held) == 1, "the retried delivery was not acked")
    told = held[0].headers
    must(told.get("mb-retry-reason") == "busy", f"mb-retry-reason: {told.get('mb-retry-reason')!r}")
    must(told.get("mb-attempt") == 2, f"mb-attempt: {told.get('mb-attempt')!r}")
    first_ms = told.get("mb-first-ms")
    if not isinstance(first_ms, int):
        raise Wrong("mb-first-ms is no whole number")
    must(abs(first_ms - began_ms) < 60_000, "mb-first-ms is not when it was published")
    must(held[0].properties.delivery_mode == 2, "delivery_mode")
    with stage.consuming(auto="") as program:
        _copy_before_ack(stage, program, "retry", delay_ms=1000)


@case("a parked message is a copy with reasons, confirmed before the ack")
def park_copies_first(stage: Stage) -> None:
    (first,) = stage.ids(1)
    stage.witness.publish(1, stage.queue, [first], headers={"shop": "12"})
    with stage.consuming(auto="") as program:
        program.received([first])
        program.do("park", tag=program.deliveries[0]["tag"], reason="no such shop")
        parked = _taken(program, stage, stage.park)
        headers = parked[0].headers
        must(parked[0].id == first and parked[0].body == body_of(first), "id or body")
        must(headers.get("mb-park-reason") == "no such shop", "mb-park-reason")
        must(headers.get("mb-park-broker") == program.deliveries[0]["broker"], "mb-park-broker")
        for name in ("mb-park-attempts", "mb-park-first-ms", "mb-park-ms"):
            must(isinstance(headers.get(name), int), f"{name} is no whole number")
        must(headers.get("shop") == "12", "headers are lost")
        must(parked[0].properties.delivery_mode == 2, "delivery_mode")
        _copy_before_ack(stage, program, "park")


@case("a delay is rounded up to the next step")
def delay_is_rounded_up(stage: Stage) -> str:
    (first,) = stage.ids(1)
    stage.witness.publish(0, stage.queue, [first])
    with stage.consuming(auto="") as program:
        program.received([first])
        began_s = time.monotonic()
        program.do("retry", tag=program.deliveries[0]["tag"], delay_ms=1500, reason="later")
        program.until(lambda: program.ids.count(first) == 2, 15, "the next run")
        took_s = time.monotonic() - began_s
        must(took_s >= 1.9, f"came after {took_s:.2f} s; 1.5 s is the step of 2 s")
        program.ack(program.deliveries[1])
        stage.nothing_left(program)
    return f"after {took_s:.2f} s"


@case("a broker in alarm is left by publishers, and acks go on", alone=True)
def alarm_is_left(stage: Stage) -> None:
    from bench.faults import alarm

    cluster = stage.bus.local
    with stage.consuming(auto="") as program:
        program.publish(stage.topic, stage.ids(5))
        program.received(stage.ids(5))
        alarm(cluster, "mb1", on=True)
        try:
            stage.front.target = stage.bus.brokers[1]
            opened = stage.front.opened
            # The first publish under an alarm makes the broker tell the connection that it is blocked.
            _until_known(program, stage.topic, stage.ids(5, "alarm"))
            program.until(lambda: stage.front.opened > opened, 10, "another broker")
            _until_known(program, stage.topic, stage.ids(20, "after"))
            program.ack(*program.deliveries[:5])
            program.received(stage.ids(5, "alarm") + stage.ids(20, "after"))
            ours = [d for d in program.deliveries if d["broker"] == stage.proxies[0].address]
            program.ack(*program.deliveries[5:])
            program.until(
                lambda: all(program.answered(d) for d in program.deliveries), 5, "answers"
            )
            must(len(ours) >= 5, "not consumed from the broker in alarm")
            stage.nothing_left(program)
        finally:
            alarm(cluster, "mb1", on=False)
            cluster.wait_ready()


@case("with TLS a wrong authority, or name, is refused")
def certificates_are_checked(stage: Stage) -> str | None:
    if not stage.bus.tls:
        raise NotRun("no bus with TLS")
    good = dict(stage.bus.tls)
    ids = stage.ids(3)
    with stage.program(**good) as program:
        must(program.register(stage.subscription)["registered"], "not registered over TLS")
        program.consume(stage.subscription)
        program.publish(stage.topic, ids)
        ends = set(program.settled(ids).values())
        must(ends == {"confirmed"}, f"with the right certificates: {ends}")
        program.received(ids)
    strange = {"MESSAGEBUS_TLS_CA_FILE": good["MESSAGEBUS_TLS_CERT_FILE"]}
    for what, wrong in (
        ("an unknown authority", strange),
        ("another name", {"MESSAGEBUS_TLS_SERVER_NAME": "other.example"}),
    ):
        with stage.program(**good | wrong) as program:
            program.publish(stage.topic, stage.ids(3, "wrong"))
            program.never(
                lambda: "confirmed" in _ends(program, stage.ids(3, "wrong")),
                2,
                f"published to a server with {what}",
            )
    return None


@case("a password that changes is read again")
def password_is_read_again(stage: Stage) -> None:
    _own_user(stage)
    with stage.consuming() as program:
        program.publish(stage.topic, stage.ids(2))
        program.settled(stage.ids(2))
        _set_password(stage, "second")
        stage.password_file.write_text("second\n")
        for proxy in (stage.front, *stage.proxies):
            proxy.cut()
        stage.attached(program, 0, 1, 2, within_s=15)
        for broker in range(3):
            stage.witness.publish(broker, stage.queue, stage.ids(2, f"b{broker}-"))
        for broker in range(3):
            program.received(stage.ids(2, f"b{broker}-"))
        _until_known(program, stage.topic, stage.ids(3, "new"))


@case("SIGTERM: takes no more messages, finishes those in its hands, ends with code 0")
def sigterm_finishes(stage: Stage) -> None:
    held, late, out = stage.ids(6), stage.ids(4, "late"), stage.ids(200, "out")
    stage.witness.publish(0, stage.queue, held)
    with stage.consuming(auto="") as program:
        program.received(held)
        program.publish(f"{stage.topic}", out[:1])
        program.settled(out[:1])
        stage.front.frozen = True
        program.publish(f"{stage.topic}", out[1:])
        time.sleep(0.2)
        program.terminate()
        time.sleep(LET_GO_S)
        stage.front.frozen = False
        stage.witness.publish(0, stage.queue, late)
        program.ack(*program.deliveries)
        code = program.end()
        must(code == 0, f"ended with code {code}")
        ends = program.outcomes()
        must(set(out) <= ends.keys(), f"{len(set(out) - ends.keys())} publishes without an outcome")
        must(not set(late) & set(program.ids), "took deliveries after SIGTERM")
    back = {each.id for each in stage.witness.take(stage.queue)}
    must(set(late) <= back, "messages are lost")
    must(not back & set(held), "deliveries that it answered came back")
    lost = {each for each in out if ends[each] == ["confirmed"]} - back - set(program.ids)
    must(not lost, f"{len(lost)} told confirmed are lost")


@case("names that docs/WIRE.md forbids are refused before they reach a broker")
def names_are_refused(stage: Stage) -> None:
    bad = (
        "",
        "two words",
        "amq.x",
        "mb.x",
        "-x",
        ".x",
        "a/b",
        "x" * 121,
        "ü",
        "queue:",
        "queue:a b",
    )
    with stage.program() as program:
        program.publish(stage.topic, stage.ids(1))
        program.settled(stage.ids(1))
        opened = stage.front.opened
        for number, name in enumerate(bad):
            ids = stage.ids(1, f"bad{number}-")
            program.publish(name, ids)
            end = program.settled(ids)[ids[0]]
            must(end == "refused", f"a publish to {name[:20]!r} is {end}")
        for name in (*bad[1:8], "orders/", "a/b/c", "a/mb.x"):
            told = program.register(f"{name}/s" if name == "a/b" else name)
            must(not told["registered"] and told.get("final"), f"registering {name[:20]!r}: {told}")
        program.publish(stage.topic, stage.ids(1, "good"))
        must(set(program.settled(stage.ids(1, "good")).values()) == {"confirmed"}, "not confirmed")
        must(stage.front.opened == opened, "a bad name cost the connection")


# Value of a header, its type in a table, and its bytes; as RabbitMQ has them.
TYPES: dict[str, tuple[Any, bytes]] = {
    "bool": (True, b"t\1"),
    "int8": (-7, b"b\xf9"),
    "uint8": (200, b"B\xc8"),
    "int16": (-300, b"s" + (-300).to_bytes(2, "big", signed=True)),
    "uint16": (60_000, b"u" + (60_000).to_bytes(2, "big")),
    "int32": (-70_000, b"I" + (-70_000).to_bytes(4, "big", signed=True)),
    "uint32": (4_000_000_000, b"i" + (4_000_000_000).to_bytes(4, "big")),
    "int64": (1 << 40, b"l" + (1 << 40).to_bytes(8, "big")),
    "double": (0.5, b"d" + bytes.fromhex("3fe0000000000000")),
    "float": (0.25, b"f" + bytes.fromhex("3e800000")),
    "text": ("grün", b"S" + len("grün".encode()).to_bytes(4, "big") + "grün".encode()),
    "nothing": (None, b"V"),
    "table": ({"in": 1}, b"F\0\0\0\x05\x02inb\1"),
    "array": ([1, "a"], b"A\0\0\0\x08b\1S\0\0\0\1a"),
}
# Not in JSON: judged in the copy alone.
COPIED: dict[str, tuple[Any, bytes]] = {
    "time": (datetime(2026, 1, 1, tzinfo=UTC), b"T" + (1_767_225_600).to_bytes(8, "big")),
    "decimal": (Decimal("1.25"), b"D\2\0\0\0\x7d"),
    "bytes": (b"\xff\0", b"x\0\0\0\2\xff\0"),
}


@case("header values of every type arrive, and live through a copy")
def header_types_survive(stage: Stage) -> str | None:
    every = TYPES | COPIED
    rows = b"".join(bytes([len(name)]) + name.encode() + raw for name, (_, raw) in every.items())
    (first,) = stage.ids(1)
    name = first.encode()
    head = b"\x30\x80" + len(rows).to_bytes(4, "big") + rows + b"\2" + bytes([len(name)]) + name
    with stage.consuming(auto="") as program:
        stage.witness.publish_raw(0, stage.queue, Encoded(head), b"types")
        program.received([first])
        told = program.deliveries[0]["headers"]
        wrong = [key for key, (value, _) in TYPES.items() if told.get(key) != value]
        must(not wrong, f"read wrongly: {', '.join(f'{key} {told.get(key)!r}' for key in wrong)}")
        program.do("retry", tag=program.deliveries[0]["tag"], delay_ms=0, reason="look")
        program.until(lambda: len(program.deliveries) == 2, 10, "the copy")
        told = program.deliveries[1]["headers"]
        wrong = [key for key, (value, _) in TYPES.items() if told.get(key) != value]
        must(not wrong, f"copied wrongly: {', '.join(f'{key} {told.get(key)!r}' for key in wrong)}")
        program.do("park", tag=program.deliveries[1]["tag"], reason="look")
        copy = _taken(program, stage, stage.park)[0].headers
        own = {
            "text": "x",
            "number": 1 << 40,
            "small": 3,
            "yes": True,
            "list": [1],
            "in": {"a": "b"},
        }
        program.publish(stage.topic, stage.ids(1, "own"), headers=own)
        program.received(stage.ids(1, "own"))
        back = program.deliveries[-1]["headers"]
        wrong = [key for key, value in own.items() if back.get(key) != value]
        must(not wrong, f"published wrongly: {', '.join(wrong)}")
        lost = [
            key
            for key, (value, _) in COPIED.items()
            if copy.get(key) not in (value, value.replace(tzinfo=None) if key == "time" else value)
        ]
    return f"not kept in a copy: {', '.join(lost)}" if lost else None


@case("a limit of connections is no refused login: it is dialled again soon, and served in the end")
def limits_are_tried_again(stage: Stage) -> None:
    _own_user(stage)
    _limit_connections(stage, 0)
    with stage.program() as program:
        program.consume(stage.subscription)
        for proxy, who in ((stage.front, "publisher"), (stage.proxies[0], "consumer")):
            program.until(
                lambda proxy=proxy: proxy.opened >= DIALS,  # type: ignore[misc]
                DIALS_WITHIN_S,
                f"dial {DIALS} of the {who}",
            )
        _limit_connections(stage, None)
        stage.attached(program, 0, 1, 2)
        _until_known(program, stage.topic, stage.ids(3))
        program.received(stage.ids(3))


@case("a refused login is named on standard error, and dialled seldom")
def refused_login_is_named(stage: Stage) -> str | None:
    _own_user(stage)
    stage.password_file.write_text("wrong")
    with stage.program() as program:
        program.consume(stage.subscription)
        program.publish(stage.topic, stage.ids(2))
        program.until(lambda: stage.front.opened, 10, "a dial")
        program.never(
            lambda: max(stage.front.opened, stage.proxies[0].opened) > REFUSED_DIALS_MAX,
            REFUSED_FOR_S,
            f"dialled more than {REFUSED_DIALS_MAX} times in {REFUSED_FOR_S:g} s",
        )
        must("confirmed" not in _ends(program, stage.ids(2)), "confirmed without a login")
    said = (stage.bus.folder / f"{stage.topic}.log").read_text(errors="replace")
    return None if LOGIN_REFUSED.search(said) else "does not name it"


class NotRun(Exception):
    """Raised by a case that cannot run here; says why."""


def _entry(
    message_id: str, content_type: str | None, headers: dict[str, Any] | None
) -> pika.BasicProperties:
    return pika.BasicProperties(message_id=message_id, content_type=content_type, headers=headers)


def _ends(program: Program, ids: list[str]) -> set[str]:
    return {end for each in ids for end in program.outcomes().get(each, ())}


def _until_known(program: Program, to: str, ids: list[str]) -> dict[str, str]:
    """Publish these until all are confirmed: what is told unknown, again, under the same id."""
    if not any(each in program.ordered for each in ids):
        program.publish(to, ids)
    found = _last_ends(program, to, ids)
    wrong = [each for each, end in found.items() if end != "confirmed"]
    must(not wrong, f"{len(wrong)} ended {found[wrong[0]] if wrong else ''}, not confirmed")
    return found


def _last_ends(program: Program, to: str, ids: list[str]) -> dict[str, str]:
    """Wait for the outcomes of these, and publish again, a few times, what is told unknown."""
    waiting = ids
    for _ in range(AGAIN_MAX):
        ends = program.settled(waiting, 40)
        waiting = [each for each in waiting if ends[each] == "unknown"]
        if not waiting:
            break
        before = {each: len(program.outcomes()[each]) for each in waiting}
        program.publish(to, waiting)
        program.until(
            lambda before=before: all(  # type: ignore[misc]
                len(program.outcomes()[each]) > count for each, count in before.items()
            ),
            40,
            "an outcome of what was published again",
        )
    return {each: program.outcomes()[each][-1] for each in ids}


def _flows(stage: Stage, program: Program) -> None:
    """See that messages still come from every broker."""
    for broker in range(3):
        stage.witness.publish(broker, stage.queue, stage.ids(3, f"flow{broker}-"))
        program.received(stage.ids(3, f"flow{broker}-"))


def _taken(program: Program, stage: Stage, queue: str) -> list[Held]:
    """Wait for messages in a queue, and take them."""
    found: list[Held] = []

    def there() -> bool:
        found.extend(stage.witness.take(queue))
        return bool(found)

    program.until(there, 10, f"a message in {queue}")
    return found


def _copy_before_ack(stage: Stage, program: Program, how: str, **more: Any) -> None:
    """While no copy can be confirmed, the delivery must not be acked; later it is, once."""
    (each,) = stage.ids(1, "order")
    stage.witness.publish(0, stage.queue, [each])
    program.received([each])
    stage.front.mute = True
    program.do(how, tag=_last(program, each)["tag"], reason="x", **more)
    time.sleep(0.5)
    stage.proxies[0].cut()
    program.until(
        lambda: program.ids.count(each) >= 2,
        15,
        "again, as its copy was never confirmed: acked early",
    )
    program.ack(_last(program, each))
    stage.front.cut()
    stage.front.heal()


def _last(program: Program, message_id: str) -> Event:
    return [d for d in program.deliveries if d["delivered"] == message_id][-1]


def _own_user(stage: Stage) -> None:
    """Have the client log in as a user of this case alone."""
    if stage.bus.local is None:
        raise NotRun("needs a local cluster")
    stage.user = f"{stage.topic}user"
    _set_password(stage, "first")
    stage.password_file.write_text("first")


def _limit_connections(stage: Stage, count: int | None) -> None:
    """Allow this case's user so many connections to each broker; None: any number."""
    path = f"/api/user-limits/{stage.user}/max-connections"
    for name in stage.bus.local.names:
        with stage.bus.local.management(name) as management:
            asked = (
                management.delete(path)
                if count is None
                else management.put(path, json={"value": count})
            )
            asked.raise_for_status()


def _set_password(stage: Stage, password: str) -> None:
    for name in stage.bus.local.names:
        with stage.bus.local.management(name) as management:
            body = {"password": password, "tags": ""}
            management.put(f"/api/users/{stage.user}", json=body).raise_for_status()
            rights = dict.fromkeys(("configure", "write", "read"), ".*")
            management.put(f"/api/permissions/%2F/{stage.user}", json=rights).raise_for_status()
