from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from bench.errors import BenchError, InputInvalid
from bench.harness import control
from bench.harness.control import Progress
from bench.harness.workers import Recording, Workers, made, made_empty, members, open_ended
from bench.load.profile import Profile
from bench.processes import Child, Children
from messagebus.recording.manifest import Incident, read_manifest


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    assert made_empty(tmp_path / "a" / "b").is_dir()
    assert made_empty(tmp_path / "a" / "b").is_dir()
    assert made(tmp_path / "a").is_dir()


def test_what_a_run_wrote_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    with pytest.raises(InputInvalid, match="is not empty"):
        made_empty(tmp_path)


def test_a_place_that_cannot_be_a_folder_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below", Path("/proc/x")):
        with pytest.raises(InputInvalid, match=f"{place}: no folder can be made: "):
            made(place)


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


def test_an_open_ended_load_ends_its_publishers_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, started = workers(tmp_path, profile())
    counts = iter((3, 5, 5))

    def look() -> int:
        assert started.ended == set(made.publishers)
        assert not control.is_over(tmp_path)
        return next(counts)

    def end() -> None:
        started.ended |= set(made.consumers)

    monkeypatch.setattr(made, "received", look)
    monkeypatch.setattr("bench.harness.workers.QUIET_S", 0)
    monkeypatch.setattr("bench.harness.workers.say_over", lambda _folder: end())
    made.finish()
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
    assert (manifest.end_ns or 0) > 0
    # Nothing was published, which an audit does not let pass.
    assert (events.files, audited.holds) == (0, False)
