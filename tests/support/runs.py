"""Folders of measured runs that never happened, for reports and comparisons."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.errors import BenchError
from bench.faults import Fault
from bench.harness.consuming import Had
from bench.harness.coordinator import SAMPLES
from bench.harness.outcomes import CONFIRMED, UNKNOWN
from bench.harness.parts import CONSUMER, PUBLISHER, Part, write_had, write_sent
from bench.harness.publishing import Sent
from bench.harness.sampling import Probe, Sample, save
from bench.harness.workers import PROFILE, RUN
from bench.load.profile import Profile

S, MS = 1_000_000_000, 1_000_000
START_NS = 1_790_000_000 * S
BROKERS = ("127.0.0.11:5672", "127.0.0.12:5672")
WARM_UP_S, MEASURED_S = 2, 10


class Nothing:
    """System without processes."""

    def env(self) -> Mapping[str, str]:
        return {}

    def declare(self, profile: Profile) -> None:
        pass

    def probes(self) -> list[Probe]:
        return []

    def about(self) -> Mapping[str, Any]:
        return {"version": "1"}

    def fault(self, name: str, number: int) -> Fault:
        raise BenchError(name)


def write_run(
    folder: Path,
    *,
    rate: int = 200,
    lost: int = 0,
    slow: float = 1.0,
    behind_s: float = 0.0,
    complete: bool = True,
    outage: range = range(0),
    repeats: int = 0,
    disturbances: Sequence[Mapping[str, Any]] = (),
    idle: Sequence[str] = (),
) -> None:
    """Write a run of two publishers and one consumer, with this rate in messages a second together.

    behind_s: how long the last message waits, and each before it according to its place. outage: messages
    intended in these seconds have no answer and never came. repeats: deliveries that come a second time
    with the last one. idle: brokers that were sampled until second 4, and confirmed nothing.
    """
    chance = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    schedule = {"kind": "constant", "rate_per_s": rate}
    time = {"warm_up_s": float(WARM_UP_S), "measured_s": float(MEASURED_S)}
    profile = Profile.from_values(
        {
            "name": "made-up",
            "load": {"schedule": schedule, "publishers": 2},
            "system": {"brokers": len(BROKERS) + len(idle)},
            "time": time,
            "disturbances": [
                {key: value for key, value in each.items() if key != "starts_s"}
                for each in disturbances
            ],
        },
        "test",
    )
    (folder / PROFILE).write_text(json.dumps(profile.as_json()))
    about: dict[str, Any] = {
        "environment": {
            "at": "2026-11-21T00:00:00Z",
            "commit": "abc",
            "cores": 2,
            "load_before": [0.5],
            "load_after": [1.5],
        },
        "durability": "fsynced",
        "complete": complete,
        "faults": []
        if complete
        else ["publisher-1 ended by itself (signal SIGKILL): it said nothing"],
    }
    if disturbances:
        about["disturbances"] = [
            {
                "what": each["what"],
                "began_s": each["at_s"],
                "lifted_s": each["at_s"] + each["lasts_s"],
                "ended_s": each["at_s"] + each["lasts_s"] + each.get("starts_s", 0),
            }
            for each in disturbances
        ]
    (folder / RUN).write_text(json.dumps(about))
    had = Had(START_NS, brokers=list(BROKERS))
    for number in range(2 if complete else 1):
        _publisher(folder, number, rate // 2, had, chance, (slow, behind_s), outage)
    every = (had.publishers, had.sequences, had.broker_of, had.intended_ns, had.received_ns)
    last_ns = max(had.received_ns, default=0)
    for _ in range(repeats):
        for rows, value in zip(every, (*(rows[0] for rows in every[:4]), last_ns), strict=True):
            rows.append(value)
    had_rows = len(had.sequences) - lost
    for rows in every:
        del rows[had_rows:]
    intended = np.array(had.intended_ns, dtype=np.int64)
    received = np.array(had.received_ns, dtype=np.int64)
    had.received.add(BROKERS[0], received)
    had.delivery.add(BROKERS[0], intended, received - intended)
    part = Part(
        name="consumer-0",
        kind=CONSUMER,
        subscription="load0/sink0",
        cpu_s=1.0,
        measured_s=MEASURED_S,
        brokers=BROKERS,
    )
    write_had(folder, part, had)
    samples = [
        Sample(broker, float(at), at * 0.2, 120.0, at * 100_000, at * 10, at % 3, 0)
        for at in range(14)
        for broker in (*BROKERS, *(idle if at < 5 else ()))
    ]
    save(folder / SAMPLES, samples)


def _publisher(
    folder: Path,
    number: int,
    rate: int,
    had: Had,
    chance: random.Random,
    slowness: tuple[float, float],
    outage: range,
) -> None:
    slow, behind_s = slowness
    count = rate * (WARM_UP_S + MEASURED_S)
    sent = Sent(START_NS)
    intended = [START_NS + n * S // rate for n in range(count)]
    took = [
        int(chance.lognormvariate(1, 0.5) * MS * slow + behind_s * S * place / count)
        for place in range(count)
    ]
    answered = [(each - START_NS) // S not in outage for each in intended]
    sent.intended_ns = array("q", intended)
    sent.outcomes = bytearray(CONFIRMED if each else UNKNOWN for each in answered)
    at, waits = np.array(intended, dtype=np.int64), np.array(took, dtype=np.int64)
    sent.settled_ns = array("q", (at + waits).tolist())
    # The system is behind, not the load.
    sent.pacing.add("", at, np.minimum(waits // 50, MS))
    broker, own = BROKERS[number], np.array(answered)
    sent.settled.add(broker, (at + waits)[own])
    sent.confirm.add(broker, at[own], waits[own])
    sent.service.add(broker, at[own], waits[own] // 2)
    for sequence, (each, took_ns) in enumerate(zip(intended, took, strict=True)):
        if not answered[sequence]:
            continue
        had.publishers.append(number)
        had.sequences.append(sequence)
        had.broker_of.append(number)
        had.intended_ns.append(each)
        had.received_ns.append(each + 2 * took_ns)
    part = Part(
        name=f"publisher-{number}",
        kind=PUBLISHER,
        number=number,
        cpu_s=2.0,
        measured_s=MEASURED_S,
        intended=count,
        sent=count,
    )
    write_sent(folder, part, sent)
