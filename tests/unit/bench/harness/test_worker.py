"""One load process in this one, with clients that need no broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from bench.harness import control
from bench.harness import worker as module
from bench.harness.control import Progress, Start
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED
from bench.harness.parts import read_parts
from bench.harness.workers import Recording
from bench.load.bodies import Filler, read, stamped
from bench.load.profile import Profile
from tests.support.eventually import eventually_async


class Sender:
    """Sender whose publishes are confirmed at once. sent: (number of the publisher, body, key)."""

    def __init__(self, _profile: Profile, where: Where) -> None:
        self.where, self._ends = where, list[End]()
        self.sent: list[tuple[int, bytes, str]] = []
        made.append(self)

    async def open(self) -> None: ...

    async def room(self) -> None: ...

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        self.sent.append((sequence, body, key))
        self._ends.append(End(sequence, CONFIRMED, "b:1", 1, 2))

    def ends(self) -> list[End]:
        ends, self._ends = self._ends, []
        return ends

    async def close(self, timeout_s: float) -> None: ...


class Receiver:
    """Receiver of one message, which ends the run with its second look."""

    def __init__(self, _profile: Profile, where: Where) -> None:
        self.where, self.folder = where, Path(where.env["FOLDER"])
        self._looks = 0

    async def open(self) -> None: ...

    async def take(self, max_wait_s: float) -> list[Delivered]:
        self._looks += 1
        if self._looks > 1:
            control.say_over(self.folder)
            return []
        return [Delivered(stamped(Filler.of(bytes(40)), 1, 0, 1 << 62), "b:1", 5)]

    async def close(self) -> None: ...

    def links(self) -> set[str]:
        return {"b:1", "b:2"}


made: list[Sender] = []


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made.clear()
    monkeypatch.setattr(module, "sender", Sender)
    monkeypatch.setattr(module, "receiver", Receiver)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    control.say_start(tmp_path, Start.soon(0))


def profile(schedule: dict[str, object], **messages: object) -> Profile:
    values = {
        "name": "x",
        "load": {"schedule": schedule, "publishers": 2, "per_process": 2},
        "messages": {"places": ["t/a"], **messages},
        "time": {"warm_up_s": 0, "measured_s": 60},
    }
    return Profile.from_values(values, "x")


def work(wanted: Profile, folder: Path, kind: str, recording: Recording | None = None) -> None:
    asyncio.run(module._work(wanted, folder, kind, 0, recording))


def test_a_steered_load_sends_each_record_once_at_the_rate_that_is_set(tmp_path: Path) -> None:
    file = tmp_path / "records"
    file.write_text("\n\n".join(f"Package: p{n}\nwith a long enough text" for n in range(9)))
    control.set_rate(tmp_path, 1000)
    slow = {"kind": "steered", "rate_per_s": 0.001, "count": 9}
    work(profile(slow, file=str(file)), tmp_path, "publisher")
    keys = [[key for _, _, key in sender.sent] for sender in made]
    assert keys == [["p0", "p2", "p4", "p6", "p8"], ["p1", "p3", "p5", "p7"]]
    stamps = [[(read(body) or ())[:2] for _, body, _ in sender.sent] for sender in made]
    assert stamps == [[(n, k) for k in range(count)] for n, count in enumerate((5, 4))]
    assert {sender.where.topic for sender in made} == {"t"}
    progress = control.read_progress(tmp_path)
    assert progress["publisher-0"] == Progress("publisher-0", 5, {"b:1": 5})
    parts = {part.name: part for part in read_parts(tmp_path)}
    assert [(parts[n].intended, parts[n].sent) for n in sorted(parts)] == [(5, 5), (4, 4)]


def test_a_signal_ends_an_open_ended_load_and_its_part_is_written(tmp_path: Path) -> None:
    async def interrupted() -> None:
        wanted = profile({"kind": "constant", "rate_per_s": 1000})
        task = asyncio.create_task(module._work(wanted, tmp_path, "publisher", 0, None))
        await eventually_async(lambda: made and len(made[-1].sent) > 20, within_s=30)
        os.kill(os.getpid(), signal.SIGTERM)
        await task

    asyncio.run(interrupted())
    parts = read_parts(tmp_path)
    assert len(parts) == 2
    for part in parts:
        assert part.sent > 20
        # The schedule is of a minute; what was intended is what was due until the end.
        assert part.sent <= part.intended < 30_000


def test_a_consumer_shows_deliveries_by_broker_and_its_links(tmp_path: Path) -> None:
    wanted = profile({"kind": "constant", "rate_per_s": 1})
    work(wanted, tmp_path, "consumer", Recording(tmp_path / "rows", "r"))
    progress = control.read_progress(tmp_path)["consumer-0"]
    assert (progress.done, progress.brokers) == (1, {"b:1": 1})
    assert sorted(progress.attached) == ["b:1", "b:2"]
    (part,) = read_parts(tmp_path)
    assert (part.subscription, part.number) == ("t/a", 0)
    first, *_ = (tmp_path / "rows" / "delivered-consumer-0.ndjson").read_text().splitlines()
    assert json.loads(first)["anchor"]["process"] == "consumer-0"
