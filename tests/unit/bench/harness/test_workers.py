"""Load processes: their meeting, start and end, disturbances meanwhile, and one of them in this process."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from bench.errors import BenchError, InputInvalid
from bench.faults import Fault
from bench.harness import worker as module
from bench.harness import workers as control
from bench.harness.coordinator import Disturber, steps
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED
from bench.harness.parts import read_parts
from bench.harness.sampling import Probe
from bench.harness.workers import (
    Progress,
    Recording,
    Start,
    Workers,
    make_empty_folder,
    make_folder,
    members,
    open_ended,
)
from bench.load.bodies import Filler, read, stamped
from bench.load.profile import Disturbance, Profile, Time
from bench.processes import Child, Children
from messagebus.recording.manifest import Incident, read_manifest
from tests.support.eventually import eventually, eventually_async


def test_processes_meet_through_the_folder(tmp_path: Path) -> None:
    assert control.missing(tmp_path, ["a", "b"]) == ["a", "b"]
    control.say_ready(tmp_path, "a")
    assert control.missing(tmp_path, ["a", "b"]) == ["b"]
    start = Start.soon(1.0)
    control.say_start(tmp_path, start)
    assert control.wait_for_start(tmp_path, within_s=1) == start
    assert not control.is_over(tmp_path)
    control.say_over(tmp_path)
    assert control.is_over(tmp_path)


def test_processes_of_one_host_have_one_clock_and_others_their_own() -> None:
    here = Start.soon(1.0)
    assert here.offset_ns() == here.wall_minus_monotonic_ns
    there = Start(at_wall_ns=0, host="elsewhere", wall_minus_monotonic_ns=5)
    assert there.offset_ns() != 5


def test_no_wait_is_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="nobody said start"):
        control.wait_for_start(tmp_path, within_s=0)
    control.say_over(tmp_path)
    with pytest.raises(BenchError, match="over before"):
        control.wait_for_start(tmp_path, within_s=1)


def test_progress_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert control.read_progress(tmp_path) == {}
    progress = Progress("publisher-0", done=3, brokers={"b1": 2}, attached={"b1": 5})
    control.write_progress(tmp_path, Progress("publisher-0"))
    control.write_progress(tmp_path, progress)
    assert control.read_progress(tmp_path) == {"publisher-0": progress}


def test_a_rate_is_the_last_that_was_set(tmp_path: Path) -> None:
    assert control.rate_per_s(tmp_path) is None
    for rate in (0.25, 400.0, 0.0):
        control.set_rate(tmp_path, rate)
        assert control.rate_per_s(tmp_path) == rate


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    assert make_empty_folder(tmp_path / "a" / "b").is_dir()
    assert make_empty_folder(tmp_path / "a" / "b").is_dir()
    assert make_folder(tmp_path / "a").is_dir()


def test_what_a_run_wrote_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    with pytest.raises(InputInvalid, match="is not empty"):
        make_empty_folder(tmp_path)


def test_a_place_that_cannot_be_a_folder_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below", Path("/proc/x")):
        with pytest.raises(InputInvalid, match=f"{place}: no folder can be made: "):
            make_folder(place)


PLACES = ["t/a", "t/b"]


class Started(Children):
    """Children that are noted and not started. ended: names of those that have ended."""

    def __init__(self) -> None:
        self.argv: dict[str, Sequence[str]] = {}
        self.env: Mapping[str, str] = {}
        self.ended: set[str] = set()
        self.failed: set[str] = set()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Child:
        self.argv[name], self.env = argv, env
        return None  # type: ignore[return-value]

    def check(self, names: Iterable[str], *, may_end: bool = False) -> None:
        if bad := [
            name for name in names if name in self.failed or (name in self.ended and not may_end)
        ]:
            raise BenchError(f"{bad[0]} ended by itself")

    def log_bytes(self) -> int:
        return 0

    def running(self, names: Iterable[str] | None = None) -> list[str]:
        return [name for name in names or self.argv if name not in self.ended]

    def terminate(self, names: Iterable[str]) -> None:
        self.ended |= set(names)

    def stop_all(self) -> list[str]:
        self.ended |= set(self.argv)
        return []


def profile(**load: object) -> Profile:
    found = open_ended("x", PLACES * 2, publishers=3, rate_per_s=9, body_bytes=100).as_json()
    found["load"] |= load
    return Profile.from_values(found, "x")


def workers(folder: Path, wanted: Profile) -> tuple[Workers, Started]:
    started = Started()
    made = Workers(wanted, folder, started, Recording(folder / "rows", "r1"))
    made.launch({"MESSAGEBUS_BROKER": "b:1"})
    return made, started


def test_each_client_has_a_process_that_knows_run_kind_number_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESSAGEBUS_USER", "somebody else's")
    made, started = workers(tmp_path, profile())
    assert list(started.argv) == [*made.publishers, *made.consumers]
    assert len(made.publishers) == 3
    words = list(started.argv["consumer-2"])
    for name, value in (
        ("--run", str(tmp_path)),
        ("--kind", "consumer"),
        ("--number", "2"),
        ("--recording", str(tmp_path / "rows")),
        ("--run-id", "r1"),
    ):
        assert words[words.index(name) + 1] == value
    assert {key: v for key, v in started.env.items() if key.startswith("MESSAGEBUS_")} == {
        "MESSAGEBUS_BROKER": "b:1"
    }
    assert started.env["PATH"] == os.environ["PATH"]
    assert (
        Profile.from_values(json.loads((tmp_path / control.PROFILE).read_text()), "x") == profile()
    )


def test_clients_may_share_a_process(tmp_path: Path) -> None:
    wanted = profile(per_process=2)
    _, started = workers(tmp_path, wanted)
    assert list(started.argv) == ["publisher-0", "publisher-1", "consumer-0", "consumer-1"]
    assert [*members(wanted, "publisher", 1)] == [2]
    assert [*members(wanted, "consumer", 1)] == [2, 3]


def test_the_load_starts_when_all_are_ready(tmp_path: Path) -> None:
    made, _started = workers(tmp_path, profile())
    for name in (*made.publishers, *made.consumers):
        assert name in made.missing()
        control.say_ready(tmp_path, name)
    before_ns = time.monotonic_ns()
    made.meet()
    assert made.start_ns > before_ns
    assert control.wait_for_start(tmp_path, within_s=1)


def test_one_that_dies_before_the_start_ends_the_wait(tmp_path: Path) -> None:
    made, started = workers(tmp_path, profile())
    started.ended = {"consumer-1"}
    with pytest.raises(BenchError, match="consumer-1 ended by itself"):
        made.meet()


@pytest.mark.parametrize("lost", [False, True])
def test_an_open_ended_load_ends_its_publishers_and_waits_for_what_was_confirmed(
    lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumers end when each subscription had each message, or when nothing more comes."""
    made, started = workers(tmp_path, profile())
    row = {"topic": "t", "message_id": "ab", "outcome": "confirmed"}
    come = [row | {"subscription": name} for name in ("a", "b")][: 1 if lost else 2]
    had: list[int] = []
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "published-p.ndjson").write_text(json.dumps(row) + "\n")

    def deliver(left: int) -> None:
        assert started.ended == set(made.publishers)
        assert not control.is_over(tmp_path)
        had.append(left)
        if come:
            with (tmp_path / "rows" / "delivered-c.ndjson").open("a") as file:
                file.write(json.dumps(come.pop()) + "\n")

    def end() -> None:
        started.ended |= set(made.consumers)

    wait = made.wait_delivered
    monkeypatch.setattr(made, "wait_delivered", lambda: wait(deliver))
    monkeypatch.setattr("bench.harness.workers.QUIET_S", 0)
    monkeypatch.setattr("bench.harness.workers.STALLED_S", 0.3)
    monkeypatch.setattr("bench.harness.workers.say_over", lambda _folder: end())
    made.finish()
    assert sorted(set(had), reverse=True) == ([2, 1] if lost else [2, 1, 0])
    assert started.running() == []


def test_processes_that_wait_for_the_start_end_with_the_run(tmp_path: Path) -> None:
    made, started = workers(tmp_path, profile())
    made.stop()
    assert started.running() == []
    with pytest.raises(BenchError, match="over before it had started"):
        control.wait_for_start(tmp_path, within_s=1)


def test_a_publisher_that_failed_at_the_end_is_a_fault(tmp_path: Path) -> None:
    made, started = workers(tmp_path, profile())
    started.failed = {"publisher-1"}
    with pytest.raises(BenchError, match="publisher-1 ended by itself"):
        made.finish()


def test_deliveries_so_far_are_those_of_all_consumers(tmp_path: Path) -> None:
    made, _ = workers(tmp_path, profile())
    for progress in (
        Progress("publisher-0", 9),
        Progress("consumer-0", 3),
        Progress("consumer-3", 2),
    ):
        control.write_progress(tmp_path, progress)
    assert made.received() == 5
    assert made.without_part() == [*made.publishers, *made.consumers]


def test_the_manifest_has_what_the_audit_expects(tmp_path: Path) -> None:
    made, _ = workers(tmp_path, profile())
    (tmp_path / "rows").mkdir()
    made.start()
    kill = Incident(kind="kill", broker="b1", at_ns=made.start_ns, done_ns=made.start_ns + 1)
    assert not made.manifest(["b1"], complete=False).complete
    manifest, events, audited = made.judged(["b1", "b2"], [kill])
    assert read_manifest(tmp_path / "rows") == manifest
    assert manifest.topics == {"t": ("a", "b")}
    assert manifest.publishers == made.publishers
    assert [(each.name, each.subscription) for each in manifest.consumers] == [
        ("consumer-0", "a"),
        ("consumer-1", "b"),
        ("consumer-2", "a"),
        ("consumer-3", "b"),
    ]
    assert (manifest.run_id, manifest.loop, manifest.incidents) == ("r1", "open", (kill,))
    assert manifest.complete
    made.profile = dataclasses.replace(made.profile, time=Time(warm_up_s=3.0, measured_s=9.0))
    assert made.manifest(["b1"], complete=False).warm_up_s == 3
    assert (manifest.end_ns or 0) > 0
    # Nothing was published, which an audit does not let pass.
    assert (events.files, audited.holds) == (0, False)


class Sender:
    """Sender whose publishes are confirmed at once. sent: (number of the publisher, body, key)."""

    def __init__(self, _profile: Profile, where: Where) -> None:
        self.where, self._ends = where, list[End]()
        self.sent: list[tuple[int, bytes, str]] = []
        senders.append(self)

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


senders: list[Sender] = []


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    senders.clear()
    monkeypatch.setattr(module, "sender", Sender)
    monkeypatch.setattr(module, "receiver", Receiver)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    control.say_start(tmp_path, Start.soon(0))


def shared(schedule: dict[str, object], **messages: object) -> Profile:
    values = {
        "name": "x",
        "load": {"schedule": schedule, "publishers": 2, "per_process": 2},
        "messages": {"places": ["t/a"], **messages},
        "time": {"warm_up_s": 0, "measured_s": 60},
    }
    return Profile.from_values(values, "x")


def work(wanted: Profile, folder: Path, kind: str, recording: Recording | None = None) -> None:
    asyncio.run(module._work(wanted, folder, kind, 0, recording))


@pytest.mark.usefixtures("clients")
def test_a_steered_load_sends_each_record_once_at_the_rate_that_is_set(tmp_path: Path) -> None:
    file = tmp_path / "records"
    file.write_text("\n\n".join(f"Package: p{n}\nwith a long enough text" for n in range(9)))
    control.set_rate(tmp_path, 1000)
    slow = {"kind": "steered", "rate_per_s": 0.001, "count": 9}
    work(shared(slow, file=str(file)), tmp_path, "publisher")
    keys = [[key for _, _, key in sender.sent] for sender in senders]
    assert keys == [["p0", "p2", "p4", "p6", "p8"], ["p1", "p3", "p5", "p7"]]
    stamps = [[(read(body) or ())[:2] for _, body, _ in sender.sent] for sender in senders]
    assert stamps == [[(n, k) for k in range(count)] for n, count in enumerate((5, 4))]
    assert {sender.where.topic for sender in senders} == {"t"}
    progress = control.read_progress(tmp_path)
    assert progress["publisher-0"] == Progress("publisher-0", 5, {"b:1": 5})
    parts = {part.name: part for part in read_parts(tmp_path)}
    assert [(parts[n].intended, parts[n].sent) for n in sorted(parts)] == [(5, 5), (4, 4)]


@pytest.mark.usefixtures("clients")
def test_a_signal_ends_an_open_ended_load_and_its_part_is_written(tmp_path: Path) -> None:
    async def interrupted() -> None:
        wanted = shared({"kind": "constant", "rate_per_s": 1000})
        task = asyncio.create_task(module._work(wanted, tmp_path, "publisher", 0, None))
        await eventually_async(lambda: senders and len(senders[-1].sent) > 20, within_s=30)
        os.kill(os.getpid(), signal.SIGTERM)
        await task

    asyncio.run(interrupted())
    parts = read_parts(tmp_path)
    assert len(parts) == 2
    for part in parts:
        assert part.sent > 20
        # The schedule is of a minute; what was intended is what was due until the end.
        assert part.sent <= part.intended < 30_000


@pytest.mark.usefixtures("clients")
def test_a_consumer_shows_deliveries_by_broker_and_its_links(tmp_path: Path) -> None:
    wanted = shared({"kind": "constant", "rate_per_s": 1})
    work(wanted, tmp_path, "consumer", Recording(tmp_path / "rows", "r"))
    progress = control.read_progress(tmp_path)["consumer-0"]
    assert (progress.done, progress.brokers) == (1, {"b:1": 1})
    assert sorted(progress.attached) == ["b:1", "b:2"]
    (part,) = read_parts(tmp_path)
    assert (part.subscription, part.number) == ("t/a", 0)
    first, *_ = (tmp_path / "rows" / "delivered-consumer-0.ndjson").read_text().splitlines()
    assert json.loads(first)["anchor"]["process"] == "consumer-0"


class Noted:
    """System that notes its disturbances; refuses: to be killed."""

    def __init__(self, *, refuses: Exception | None = None) -> None:
        self.done: list[str] = []
        self._refuses = refuses

    def probes(self) -> list[Probe]:
        return [Probe(f"127.0.0.{11 + n}:5672", 0, dict) for n in range(2)]

    def fault(self, name: str, number: int) -> Fault:
        def begin() -> None:
            if self._refuses:
                raise self._refuses
            self.done.append(f"{name} {number}")

        return Fault(name, f"mb{number}", 0.0, "", begin, lambda: self.done.append(f"end {number}"))


def test_each_begins_and_ends_in_its_time() -> None:
    wanted = [Disturbance(at_s=5, lasts_s=10), Disturbance(at_s=1, lasts_s=5)]
    assert steps(wanted) == [(1, 1, True), (5, 0, True), (6, 1, False), (15, 0, False)]


def test_what_is_done_is_undone_when_the_run_ends_before_and_is_an_incident() -> None:
    system = Noted()
    wanted = [Disturbance(at_s=0, lasts_s=1000, broker=2), Disturbance(at_s=900)]
    said: list[str] = []
    disturber = Disturber(wanted, system, time.monotonic_ns(), said.append)  # type: ignore[arg-type]
    disturber.start()
    eventually(lambda: system.done == ["kill 2"], within_s=10)
    (done,) = disturber.stop()
    assert disturber.missed() == ["kill mb1: not done, the load was over before its second 900"]
    assert system.done == ["kill 2", "end 2"]
    assert done["what"] == "kill 127.0.0.12:5672"
    assert [line.partition(" s: ")[2] for line in said] == [
        "kill 127.0.0.12:5672",
        "waiting for 127.0.0.12:5672 to be back",
        "kill 127.0.0.12:5672: over",
    ]
    assert done["ended_s"] >= done["lifted_s"] >= done["began_s"]
    kill, start = disturber.incidents()
    assert (kill.kind, start.kind) == ("kill", "start")
    assert kill.broker == start.broker == "127.0.0.12:5672"
    assert kill.done_ns == kill.at_ns <= start.at_ns


@pytest.mark.parametrize(
    "why", [BenchError("it does not run"), httpx.ConnectError("it does not run")]
)
def test_what_cannot_be_done_is_a_fault_of_the_run(why: Exception) -> None:
    refuses = Noted(refuses=why)
    wanted = [Disturbance(at_s=0)]
    disturber = Disturber(wanted, refuses, time.monotonic_ns(), str)  # type: ignore[arg-type]
    disturber.start()
    disturber.stop()
    assert disturber.faults == ["kill mb1: it does not run"]
    assert disturber.missed() == []
