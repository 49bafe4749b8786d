"""A small run on real brokers, from its profile to its report, and one that is cut short."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from bench.analysis.report import render_text
from bench.analysis.result import Result, gather, percentiles
from bench.clients.rabbitmq import Standalone
from bench.commands import measured, shown_live
from bench.environment import CHECKOUT
from bench.errors import BenchError, InputInvalid
from bench.harness.coordinator import conduct
from bench.harness.interface import started
from bench.harness.outcomes import Fates
from bench.harness.parts import read_parts
from bench.harness.workers import Workers, read_progress
from bench.load.profile import Profile
from bench.rows import Row, read_events
from messagebus.recording.manifest import read_manifest
from ops.local.cluster import LocalCluster
from spark.measures.stored import MINUTE_MS
from tests.support.eventually import eventually


def judged(result: Result) -> Fates:
    assert result.fates is not None
    return result.fates


def profile(name: str, **time: float) -> Profile:
    return Profile.from_values(
        {
            "name": name,
            "load": {
                "schedule": {"kind": "poisson", "rate_per_s": 100},
                "publishers": 2,
                "consumers": 1,
            },
            "messages": {"keys": 5},
            "time": {"warm_up_s": 1, "measured_s": 4, "drain_s": 20} | time,
            "events": True,
        },
        "test",
    )


def test_every_message_of_a_run_has_its_fate_and_its_time(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    result = measured(profile("whole"), tmp_path / "run", Standalone(cluster))
    fates = judged(result)
    assert fates.published == fates.confirmed == fates.delivered > 200
    assert (fates.lost, fates.altered, fates.orphan) == (0, 0, 0)
    assert result.about["complete"]
    assert sum(result.latencies["confirm"].whole().values()) == fates.published
    assert sum(result.latencies["delivery"].whole().values()) == fates.delivered + fates.doubled
    assert set(result.brokers) == {cluster.node(name).broker for name in cluster.names}
    assert "intended to confirmed" in render_text(result)
    assert result.machine is not None
    assert 0 < result.machine.brokers < result.machine.busy <= result.machine.cores
    # And as rows, for the reports of spark/.
    events = tmp_path / "run" / "events"
    manifest = json.loads((events / "manifest.json").read_text())
    assert manifest["complete"]
    assert re.fullmatch(r"whole-\d{8}T\d{6}Z", manifest["run_id"])
    rows = sum(path.read_text().count('"message_id"') for path in events.glob("published-*.ndjson"))
    assert rows == fates.published


def test_the_live_job_has_the_rows_of_the_run_and_their_figures(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    values = profile("live", measured_s=2.0).as_json()
    values["messages"]["places"] = ["live/sink"]
    wanted, folder, running = Profile.from_values(values, "test"), tmp_path, Standalone(cluster)
    with shown_live(wanted, folder, running):
        fates = judged(measured(wanted, folder / "run", running))
    assert fates.published == fates.confirmed > 100
    tables = folder / "live" / "live" / "tables"
    stored, minutes = (
        ds.dataset(str(tables / name), format="parquet").to_table().to_pylist()
        for name in ("messages", "minutes")
    )
    events = folder / "run" / "events"
    manifest = read_manifest(events)
    rows = {each["message_id"]: each for each in read_events(events, manifest).published}
    assert len(stored) == len(rows) == fates.published
    assert {(each["broker"], each["message_id"], each["bytes"]) for each in stored} == {
        (each["broker"], each["message_id"], each["size"]) for each in rows.values()
    }
    groups = defaultdict[tuple[int, str], list[Row]](list)
    for each in stored:
        row = rows[each["message_id"]]
        meant_ms, confirmed_ms = (
            (row[name] + manifest.anchor.wall_minus_monotonic_ns) // 1_000_000
            for name in ("intended_ns", "confirmed_ns")
        )
        # Stamps are whole seconds, and stand for a second.
        assert meant_ms - 2_000 <= each["published_ms"] <= confirmed_ms
        groups[each["published_ms"] // MINUTE_MS, row["broker"]].append(row | each)
    shown = {(each["minute"], each["broker"]): each for each in minutes}
    assert {at: (each["messages"], each["bytes"]) for at, each in shown.items()} == {
        at: (len(each), sum(row["size"] for row in each)) for at, each in groups.items()
    }
    # One batch read them all: every age is the time from its message to one and the same moment.
    read_ms = {
        moment
        for at, each in groups.items()
        for moment in (
            shown[at]["age_max_ms"] + min(row["published_ms"] for row in each),
            (shown[at]["age_ms"] + sum(row["published_ms"] for row in each)) / len(each),
        )
    }
    assert len(read_ms) == 1
    page = (folder / "live" / "live" / "live.html").read_text()
    assert "<b>0</b><span>waiting" in page
    assert all(broker in page for broker in manifest.brokers)


@pytest.mark.parametrize("system", ["pika", "aio-pika", "pika-blocking", "kombu"])
def test_other_clients_are_measured_by_the_same_load(
    cluster: LocalCluster, tmp_path: Path, system: str
) -> None:
    values = profile("peer", measured_s=2.0).as_json() | {"events": False}
    values["system"] = {"name": system, "brokers": 1}
    wanted = Profile.from_values(values, "test")
    fates = judged(measured(wanted, tmp_path / "run", Standalone(cluster, direct=True)))
    assert fates.published == fates.confirmed == fates.delivered > 100
    assert (fates.lost, fates.doubled, fates.altered, fates.late) == (0, 0, 0, 0)


def test_a_broker_that_freezes_and_consumers_that_come_late_are_told_and_lose_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    values = profile("disturbed").as_json() | {
        "disturbances": [{"at_s": 2, "what": "freeze", "broker": 1, "lasts_s": 1}],
        "events": False,
    }
    values["load"]["consume_from_s"] = 3
    wanted = Profile.from_values(values, "test")
    result = measured(wanted, tmp_path / "run", Standalone(cluster))
    fates = judged(result)
    assert fates.published == fates.confirmed + fates.unknown > 200
    assert (fates.lost, fates.altered, fates.orphan) == (0, 0, 0)
    (done,) = result.about["disturbances"]
    broker = cluster.node(cluster.names[0]).broker
    assert done["what"] == f"freeze {broker}"
    assert done["began_s"] >= 2
    assert done["ended_s"] - done["began_s"] >= 0.99  # both are rounded
    # The first message waited for its consumers, who came two seconds into the measured part.
    assert percentiles(result.bins("delivery"))["p100"] > 1000
    assert f"freeze {broker}" in render_text(result)


def test_a_run_that_loses_a_load_process_ends_and_keeps_what_it_has(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, folder = profile("cut", measured_s=30.0), tmp_path / "run"
    wait_published = Workers.wait_published

    def kill_then_wait(workers: Workers, within_s: float) -> None:
        os.kill(workers.pid("publisher-1"), signal.SIGKILL)
        wait_published(workers, within_s)

    monkeypatch.setattr(Workers, "wait_published", kill_then_wait)
    running = Standalone(cluster)
    running.declare(wanted)
    with pytest.raises(BenchError, match="publisher-1 ended by itself"):
        conduct(wanted, folder, running, lambda _line: None)
    result = gather(folder)
    assert not result.about["complete"]
    assert result.faults[0].startswith("publisher-1 ended by itself")
    assert "publisher-0" in [part.name for part in result.parts]


# Does the work of `python -m bench run`, on a cluster that is there already.
COORDINATOR = """
import json, sys
from pathlib import Path
from bench.harness.coordinator import conduct
from bench.harness.interface import started
from bench.load.profile import Profile
from bench.clients.rabbitmq import Standalone
from ops.local.cluster import LocalCluster
wanted = Profile.from_values(json.loads(sys.argv[1]), "test")
conduct(wanted, Path(sys.argv[2]), Standalone(LocalCluster(sys.argv[3])), print)
"""


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGKILL, "the run did not end in order"),
    ],
)
def test_a_coordinator_that_is_stopped_leaves_a_run_that_can_be_read(
    cluster: LocalCluster, tmp_path: Path, number: signal.Signals, why: str
) -> None:
    wanted, folder = profile("stopped", measured_s=60.0), tmp_path / "run"
    Standalone(cluster).declare(wanted)
    argv = [sys.executable, "-c", COORDINATOR, json.dumps(wanted.as_json())]
    with subprocess.Popen([*argv, str(folder), str(cluster.dir)], cwd=CHECKOUT) as coordinator:
        eventually(lambda: _done(folder) > 0, within_s=180)
        coordinator.send_signal(number)
        coordinator.wait(180)
    # Load processes notice by themselves that the coordinator is gone, and write their records.
    eventually(lambda: len(read_parts(folder)) == 3, within_s=180)
    result = gather(folder)
    assert not result.about["complete"]
    assert result.faults[0] == why
    assert sum(part.sent for part in result.parts) > 0
    assert "not to be trusted" in render_text(result)


def _done(folder: Path) -> int:
    return sum(each.done for name, each in read_progress(folder).items() if "publisher" in name)


def test_a_closed_loop_sends_so_many_however_long_it_takes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    # measured_s is the most that it may take, and a busy machine takes its time for 400 fsyncs.
    values = profile("closed", warm_up_s=0.0, measured_s=240.0).as_json() | {"events": False}
    values["load"] |= {"schedule": {"kind": "closed", "count": 200}, "window": 5, "per_process": 2}
    result = measured(Profile.from_values(values, "test"), tmp_path / "run", Standalone(cluster))
    fates = judged(result)
    assert fates.published == fates.confirmed == fates.delivered == 400
    assert result.per_s == pytest.approx(400 / result.measured_s)
    assert result.faults == []


def test_a_native_cluster_has_a_member_of_every_queue_on_every_node(tmp_path: Path) -> None:
    values = profile("native", measured_s=2.0).as_json() | {"events": False}
    values["system"] = {"name": "native", "brokers": 2}
    wanted = Profile.from_values(values, "test")
    # Declaring raises unless both nodes are members.
    with started(wanted, f"127.{1 + os.getpid() % 250}.77", print) as running:
        fates = judged(measured(wanted, tmp_path / "run", running))
    assert fates.published == fates.confirmed == fates.delivered > 100
    assert (fates.lost, fates.doubled, fates.altered) == (0, 0, 0)


def test_a_folder_that_has_something_is_never_written_into(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InputInvalid, match="is not empty"):
        conduct(profile("x"), tmp_path, Standalone(cluster), print)
