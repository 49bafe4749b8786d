"""An application's records make a run that the reports read: on the in-memory bus, with real threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.audit import audit
from bench.rows import read_events
from messagebus import Delivery
from messagebus.recording.manifest import read_manifest
from messagebus.recording.recorder import Recorder
from messagebus.testing import MemoryBus
from tests.support.eventually import FACTOR, eventually

ROOT = Path(__file__).resolve().parents[2]
JOB_WITHIN_S = 300 * FACTOR
MESSAGES = 500


def record(folder: Path, **options: Any) -> Recorder:
    """Publish to a topic and a queue, handle all of it."""
    bus = MemoryBus(brokers=2)
    with (
        Recorder(folder, run_id="night", **options) as recorder,
        bus.consumer("orders", subscription="billing") as billing,
        bus.consumer("queue:jobs") as jobs,
        bus.publisher(hooks=[recorder]) as publisher,
    ):
        publisher.send_many("orders", [f"{n}" for n in range(MESSAGES)])
        publisher.send_safe("queue:jobs", "one", message_id="job-1")
        for consumer, count in ((billing, MESSAGES), (jobs, 1)):
            for _ in range(count):
                delivery = consumer.receive(timeout_s=10)
                assert isinstance(delivery, Delivery)
                recorder.handled(delivery, "ack", None)
                consumer.ack(delivery)
    return recorder


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_the_audit_of_a_recorded_application_holds(tmp_path: Path, share: float) -> None:
    recorder = record(tmp_path, share=share)
    stats = recorder.stats()
    assert (stats.dropped, stats.waiting) == (0, 0)
    manifest = read_manifest(tmp_path)
    assert manifest.complete
    events = read_events(tmp_path, manifest)
    assert sum(events.bad.values()) == 0
    assert len(events.published) == len(events.delivered) == stats.written // 2
    if share == 1.0:
        assert len(events.published) == MESSAGES + 1
    result = audit(manifest, events)
    assert result.holds, result.faults


def test_the_report_reads_every_row_and_holds(tmp_path: Path) -> None:
    recorder = record(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "spark", "report", "--events", "run", "--out", "out"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=JOB_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert found["faults"] == []
    assert found["lines"]["bad"] == 0
    assert found["lines"]["read"] == recorder.stats().written + found["lines"]["anchors"]


def test_what_is_recorded_makes_sense_while_nobody_has_stopped_yet(tmp_path: Path) -> None:
    bus = MemoryBus()
    recorder = Recorder(tmp_path, run_id="night")
    recorder.start()
    try:
        with (
            bus.consumer("orders", subscription="billing"),
            bus.publisher(hooks=[recorder]) as publisher,
        ):
            publisher.send_safe("orders", b"1")
            eventually(lambda: recorder.stats().written == 1, within_s=60)
            eventually(lambda: "orders" in read_manifest(tmp_path).topics, within_s=60)
        manifest = read_manifest(tmp_path)
        assert not manifest.complete
        assert len(read_events(tmp_path, manifest).published) == 1
    finally:
        recorder.stop()
    assert read_manifest(tmp_path).complete
