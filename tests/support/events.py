"""Event folders of runs that never happened, with known faults in them.

`write_run` plays a small scenario (a broker added, one removed, one killed) by arithmetic alone and
writes what recorders would have written, then plants each fault of `Faults` at messages of its own,
so that a report's every number is known: `Truth`.

``python tests/support/events.py DIR [--messages N]`` makes one to look at.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
HOST = "host-1"
# Monotonic clocks start at boot; wall minus monotonic is what anchors carry.
WALL_MINUS_MONOTONIC_NS = 1_790_000_000 * SECOND
MONOTONIC_START_NS = 5_000 * SECOND
BROKERS = tuple(f"127.0.0.{11 + n}:5672" for n in range(4))
ADDED, REMOVED, KILLED = BROKERS[3], BROKERS[1], BROKERS[2]
PUBLISHERS = tuple(f"publisher-{n}" for n in range(1, 5))
TOPIC = "packages"
CONSUMERS = {"billing": ("billing-1", "billing-2", "billing-3"), "audit": ("audit-1",)}


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Number of each fault to plant; each message carries at most one. Pairs: in one subscription."""

    lost: int = 0
    altered: int = 0
    owed: int = 0
    unknown: int = 0
    acked_without_proof: int = 0
    unexplained: int = 0
    swapped: int = 0
    orphans: int = 0
    refused: int = 0
    unroutable: int = 0
    unknown_absent: int = 0
    unknown_delivered: int = 0
    cut_lines: int = 0
    wrong_types: int = 0
    missing_fields: int = 0
    empty_lines: int = 0


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Numbers that a report on the folder must have. Pairs are (message, subscription)."""

    published: int
    confirmed: int
    expected: int
    delivered: int
    deliveries: int
    lines: int
    faults: Faults
    ids: dict[str, list[str]]
    """Fault -> the messages that have it; of swapped ones, the one that comes too late."""


@dataclass(frozen=True)
class Life:
    """Time in which a broker takes publishes, as fractions of the run."""

    broker: str
    spans: tuple[tuple[float, float], ...]

    def takes(self, at: float) -> bool:
        return any(begin <= at < end for begin, end in self.spans)


def lives(kill_s: float, duration_s: float) -> list[Life]:
    back = KILL_AT + kill_s / duration_s
    return [
        Life(BROKERS[0], ((0, 1),)),
        Life(REMOVED, ((0, REMOVE_AT),)),
        Life(KILLED, ((0, KILL_AT), (back, 1))),
        Life(ADDED, ((ADD_AT, 1),)),
    ]


ADD_AT, REMOVE_AT, KILL_AT, RELOAD_AT = 0.22, 0.42, 0.62, 0.9


class Run:
    """The rows of one run, before they are written."""

    def __init__(
        self, *, run_id: str, messages: int, duration_s: float, kill_s: float, seed: int
    ) -> None:
        self.random = random.Random(seed)
        self.run_id = run_id
        self.duration_s = duration_s
        self.kill_s = kill_s
        self.published: list[Row] = []
        self.delivered: list[Row] = []
        self._of: dict[str, list[Row]] = defaultdict(list)
        self._last_ns: dict[tuple[str, str, str], int] = {}
        brokers = lives(kill_s, duration_s)
        for number in range(messages):
            self._publish(number, messages, brokers)
        for row in self.published:
            for subscription in CONSUMERS:
                self._deliver(row, subscription)

    @property
    def kill_ns(self) -> int:
        return at_ns(KILL_AT, self.duration_s)

    @property
    def back_ns(self) -> int:
        return self.kill_ns + int(self.kill_s * SECOND)

    def _publish(self, number: int, messages: int, brokers: list[Life]) -> None:
        publisher = PUBLISHERS[number % len(PUBLISHERS)]
        share = number / messages
        open_to = [life.broker for life in brokers if life.takes(share)]
        broker = open_to[(number // 7 + number % len(PUBLISHERS)) % len(open_to)]
        intended = at_ns(share, self.duration_s) + self.random.randrange(MILLISECOND)
        waited = int(self.random.expovariate(1 / (0.4 * MILLISECOND)))
        took = int(self.random.lognormvariate(1.6, 0.7) * MILLISECOND)
        if 0 <= intended - self.kill_ns < 300 * MILLISECOND:
            waited += self.kill_ns + 300 * MILLISECOND - intended
        size = min(20_000, int(self.random.lognormvariate(6.8, 0.8)) + 300)
        message_id = hashlib.blake2b(f"{self.run_id}/{number}".encode(), digest_size=16).hexdigest()
        self.published.append(
            {
                "run_id": self.run_id,
                "message_id": message_id,
                "topic": TOPIC,
                "broker": broker,
                "publisher": publisher,
                "sequence": number // len(PUBLISHERS),
                "key": None,
                "size": size,
                "body_hash": hashlib.blake2b(message_id.encode(), digest_size=16).hexdigest(),
                "outcome": "confirmed",
                "attempts": 1,
                "intended_ns": intended,
                "sent_ns": intended + waited,
                "confirmed_ns": intended + waited + took,
            }
        )

    def _deliver(self, row: Row, subscription: str) -> None:
        took = int(self.random.lognormvariate(1.9, 0.8) * MILLISECOND)
        received = row["sent_ns"] + took
        # Messages under way at the kill are delivered after the start.
        on_its_way_ns = self.kill_ns - 100 * MILLISECOND
        if row["broker"] == KILLED and on_its_way_ns <= received < self.back_ns:
            received = self.back_ns + int(self.random.expovariate(1 / (200 * MILLISECOND)))
        # A broker keeps the order of a publisher.
        stream = subscription, row["broker"], row["publisher"]
        received = self._last_ns[stream] = max(received, self._last_ns.get(stream, 0) + 1)
        self.repeat(row, subscription, received_ns=received)

    def repeat(
        self,
        row: Row,
        subscription: str,
        *,
        received_ns: int,
        ack: str = "acked",
        broker: str | None = None,
    ) -> Row:
        """Add one delivery of a published row."""
        consumer = self.random.choice(CONSUMERS[subscription])
        delivery = {
            "run_id": self.run_id,
            "message_id": row["message_id"],
            "topic": TOPIC,
            "subscription": subscription,
            "broker": broker or row["broker"],
            "consumer": consumer,
            "publisher": row["publisher"],
            "sequence": row["sequence"],
            "key": None,
            "size": row["size"],
            "body_hash": row["body_hash"],
            "redelivered": 0,
            "ack": ack,
            "received_ns": received_ns,
            "acknowledged_ns": received_ns + MILLISECOND // 2 if ack == "acked" else None,
        }
        self.delivered.append(delivery)
        self._of[row["message_id"]].append(delivery)
        return delivery

    def deliveries(self, row: Row) -> list[Row]:
        return self._of[row["message_id"]]

    def forget(self, deliveries: list[Row]) -> None:
        gone = {id(delivery) for delivery in deliveries}
        self.delivered = [row for row in self.delivered if id(row) not in gone]
        for message_id in {delivery["message_id"] for delivery in deliveries}:
            self._of[message_id] = [d for d in self._of[message_id] if id(d) not in gone]


def at_ns(share: float, duration_s: float) -> int:
    return MONOTONIC_START_NS + int(share * duration_s * SECOND)


def plant(run: Run, faults: Faults) -> dict[str, list[str]]:
    """Change the run; every fault takes messages that no other fault has. Returns fault -> ids."""
    ids: dict[str, list[str]] = defaultdict(list)
    late = swap(run, faults.swapped)
    free = run.published[:]
    run.random.shuffle(free)
    on_killed = [
        row
        for row in free
        if row["broker"] == KILLED
        and max(d["acknowledged_ns"] for d in run.deliveries(row)) < run.kill_ns
    ]
    proofless = on_killed[: faults.acked_without_proof]
    assert len(proofless) == faults.acked_without_proof, "too few messages on the killed broker"
    taken = {row["message_id"] for row in proofless} | {each for pair in late for each in pair}
    ids["swapped"] = [pair[0] for pair in late]
    free = [row for row in free if row["message_id"] not in taken]
    for row in proofless:
        run.repeat(row, "billing", received_ns=run.back_ns + 50 * MILLISECOND)

    def take(wanted: int) -> list[Row]:
        some, free[:] = free[:wanted], free[wanted:]
        assert len(some) == wanted, "too few messages for so many faults"
        return some

    for row in take(faults.lost):
        ids["lost"].append(row["message_id"])
        run.forget([d for d in run.deliveries(row) if d["subscription"] == "audit"])
    for row in take(faults.altered):
        ids["altered"].append(row["message_id"])
        run.deliveries(row)[0]["body_hash"] = "0" * 32
    for row in take(faults.owed):
        first = next(d for d in run.deliveries(row) if d["subscription"] == "billing")
        first |= {"ack": "stale", "acknowledged_ns": None}
        run.repeat(row, "billing", received_ns=first["received_ns"] + SECOND)
    for row in take(faults.unknown):
        row["attempts"] = 2
        other = next(b for b in BROKERS if b != row["broker"])
        run.repeat(row, "audit", received_ns=row["sent_ns"] + SECOND, broker=other)
    for row in take(faults.unexplained):
        ids["unexplained"].append(row["message_id"])
        first = next(d for d in run.deliveries(row) if d["subscription"] == "billing")
        run.repeat(row, "billing", received_ns=first["received_ns"] + 5 * MILLISECOND)
    _plant_outcomes(run, faults, take)
    for row in take(faults.orphans):
        delivery = run.repeat(row, "billing", received_ns=row["sent_ns"])
        delivery["message_id"] = hashlib.blake2b(
            b"orphan" + row["message_id"].encode(), digest_size=16
        ).hexdigest()
        ids["orphan"].append(delivery["message_id"])
    return dict(ids)


def swap(run: Run, pairs: int) -> list[tuple[str, str]]:
    """Swap two neighbours of one stream. Returns (the one that comes too late, the other)."""
    last: dict[tuple[str, str], Row] = {}
    swapped: list[tuple[str, str]] = []
    rows = [row for row in run.delivered if row["subscription"] == "audit"]
    for row in sorted(rows, key=lambda row: int(row["received_ns"])):
        stream = row["broker"], row["publisher"]
        before = last.pop(stream, None)
        if before and len(swapped) < pairs:
            for name in ("received_ns", "acknowledged_ns"):
                before[name], row[name] = row[name], before[name]
            swapped.append((before["message_id"], row["message_id"]))
        elif before is None or len(swapped) < pairs:
            last[stream] = row
    return swapped


def _plant_outcomes(run: Run, faults: Faults, take: Any) -> None:
    wanted = {
        "refused": faults.refused,
        "unroutable": faults.unroutable,
        "unknown": faults.unknown_absent,
    }
    for outcome, number in wanted.items():
        for row in take(number):
            row |= {"outcome": outcome, "confirmed_ns": None}
            run.forget(run.deliveries(row))
    for row in take(faults.unknown_delivered):
        row |= {"outcome": "unknown", "confirmed_ns": None}


def manifest(run: Run) -> dict[str, Any]:
    def incident(kind: str, broker: str, share: float, took_s: float) -> dict[str, Any]:
        begin = at_ns(share, run.duration_s)
        done = begin + int(took_s * SECOND)
        return {"kind": kind, "broker": broker, "at_ns": begin, "done_ns": done}

    back = KILL_AT + run.kill_s / run.duration_s
    return {
        "run_id": run.run_id,
        "topics": {TOPIC: list(CONSUMERS)},
        "brokers": list(BROKERS),
        "start_ns": at_ns(0, run.duration_s),
        "end_ns": at_ns(1, run.duration_s),
        "anchor": anchor("coordinator"),
        "grace_ns": 0,
        "publishers": list(PUBLISHERS),
        "consumers": [
            {"name": name, "subscription": subscription}
            for subscription, names in CONSUMERS.items()
            for name in names
        ],
        "prefetch": 200,
        "incidents": [
            incident("add", ADDED, ADD_AT, run.duration_s * 0.05),
            incident("remove", REMOVED, REMOVE_AT, run.duration_s * 0.1),
            incident("kill", KILLED, KILL_AT, 0.002),
            incident("start", KILLED, back, 0.5),
            incident("reload", "", RELOAD_AT, 0.2),
        ],
        "complete": True,
    }


def anchor(process: str, skew_ns: int = 0) -> dict[str, Any]:
    return {
        "host": HOST,
        "process": process,
        "wall_minus_monotonic_ns": WALL_MINUS_MONOTONIC_NS + skew_ns,
    }


def write_run(
    folder: Path,
    *,
    messages: int = 400,
    duration_s: float = 20.0,
    kill_s: float = 3.0,
    faults: Faults | None = None,
    run_id: str = "run-1",
    seed: int = 1,
) -> Truth:
    """Write manifest and event files of a run into `folder`, which is made."""
    faults = faults or Faults()
    run = Run(run_id=run_id, messages=messages, duration_s=duration_s, kill_s=kill_s, seed=seed)
    ids = plant(run, faults)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest(run), indent=1))
    lines = write_rows(folder, "published", run.published, "publisher")
    lines += write_rows(folder, "delivered", run.delivered, "consumer")
    lines += _spoil(folder / f"delivered-{CONSUMERS['audit'][0]}.ndjson", run, faults)
    not_confirmed = (
        faults.refused + faults.unroutable + faults.unknown_absent + faults.unknown_delivered
    )
    confirmed = messages - not_confirmed
    expected = confirmed * len(CONSUMERS)
    return Truth(
        published=messages,
        confirmed=confirmed,
        expected=expected,
        delivered=expected - faults.lost,
        deliveries=len(run.delivered),
        lines=lines,
        faults=faults,
        ids=ids,
    )


def write_rows(folder: Path, kind: str, rows: list[Row], by: str) -> int:
    """Write one file per process, each with its own anchor. Returns lines written."""
    of: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of[row[by]].append(row)
    for number, (process, own) in enumerate(sorted(of.items())):
        own.sort(key=lambda row: row.get("received_ns") or row["sent_ns"])
        with (folder / f"{kind}-{process}.ndjson").open("w") as file:
            file.write(json.dumps({"anchor": anchor(process, skew_ns=number * 1_000)}) + "\n")
            file.writelines(json.dumps(row) + "\n" for row in own)
    return len(rows) + len(of)


def _spoil(path: Path, run: Run, faults: Faults) -> int:
    good = run.delivered[0]
    bad = [
        *['{"run_id": "run-1", "message_id": "00'] * faults.cut_lines,
        *[json.dumps(good | {"received_ns": "soon"})] * faults.wrong_types,
        *[json.dumps({k: v for k, v in good.items() if k != "broker"})] * faults.missing_fields,
        *[""] * faults.empty_lines,
    ]
    with path.open("a") as file:
        file.writelines(line + "\n" for line in bad)
    return len(bad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--duration-s", type=float, default=75.0)
    parser.add_argument("--faults", action="store_true", help="plant some of each fault")
    given = parser.parse_args()
    some = Faults(owed=37, unknown=21, acked_without_proof=60)
    all_kinds = Faults(
        lost=3, altered=2, swapped=2, owed=37, unknown=21, acked_without_proof=60, unexplained=4, orphans=2,
        refused=2, unroutable=1, unknown_absent=3, unknown_delivered=4,
        cut_lines=1, wrong_types=2, missing_fields=1, empty_lines=1,
    )  # fmt: skip
    truth = write_run(
        given.folder,
        messages=given.messages,
        duration_s=given.duration_s,
        kill_s=10.0,
        faults=all_kinds if given.faults else some,
    )
    print(truth)


if __name__ == "__main__":
    main()
