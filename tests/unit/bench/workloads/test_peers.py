from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from bench.analysis.series import Step
from bench.load.profile import Profile
from bench.workloads import peers
from reports.text import NONE

PROFILES = Path(__file__).resolve().parents[4] / "bench" / "profiles"


def steps(repeat: int = 1) -> list[Step]:
    paced, full = (Profile.load_file(PROFILES / f"{name}.toml") for name in ("peers", "peers-full"))
    return peers.steps(paced, full, repeat, part=10)


def result(profile: Profile, *, measure: str = "confirm") -> dict[str, Any]:
    return {
        "profile": profile.as_json(),
        "durability": f"words of {profile.system.name}",
        "faults": [],
        "measured_s": 10,
        "confirmed_per_s": 1234.0,
        "delivered_per_s": 1230.0,
        "percentiles_ms": {measure: {"p50": 1.5, "p99": 20.0, "samples": 1000}},
        "clients": [{"cpu_share": 0.1}],
        "brokers": {"mb1": {"cpu_s": 1.0, "seconds": 10}},
    }


def test_paced_comes_before_full_on_the_same_start_of_a_system() -> None:
    systems = [step.profile.system for step in steps()]
    changes = sum(a != b for a, b in itertools.pairwise(systems))
    assert changes == len(peers.ARMS) - 1
    assert [step.name for step in steps()][:2] == [
        "messagebus-1-fsync-paced",
        "messagebus-1-fsync-full",
    ]


def test_every_line_says_what_is_on_disk_and_what_a_confirm_means() -> None:
    found = {step.name: result(step.profile) for step in steps()}
    head, *lines = peers.told(found).lines(200)
    assert "on disk at confirm" in head
    kafka = [line.split() for line in lines if line.split()[:2] == ["kafka", "1"]]
    assert [(line[2], line[3]) for line in kafka] == [("yes", "1,234"), ("no", "1,234")]
    assert "  kafka, 1 nodes, page-cache: words of kafka" in lines


def test_what_was_not_run_or_is_not_measured_is_a_dash_or_no_line() -> None:
    java = next(each for each in steps() if each.name == "artemis-java-1-fsync-paced")
    told = peers.told({java.name: result(java.profile, measure="service")})
    _head, line, *_ = told.lines(200)
    assert line.split() == ["artemis-java", "1", "yes", *[NONE] * 4, "1.5", "20", NONE, NONE]


def test_a_figure_of_every_rate_and_every_latency() -> None:
    found = {step.name: result(step.profile) for step in steps()}
    figures = {each.id: each.value for each in peers.figures(found, "again")}
    assert figures["measure.peers.kafka_1_page_cache.rate"] == 1234.0
    assert figures["measure.peers.artemis_cluster_3_fsync.confirm_p99_ms"] == 20.0


def test_repetitions_are_whole_rounds_and_figures_their_medians() -> None:
    found = {step.name: result(step.profile) for step in steps(3)}
    assert len(found) == 3 * len(steps())
    found["kafka-1-fsync-full-3"]["confirmed_per_s"] = 1.0
    figures = {each.id: each for each in peers.figures(found, "again")}
    assert figures["measure.peers.kafka_1_fsync.rate"].samples == (1234.0, 1234.0, 1.0)
    assert figures["measure.peers.kafka_1_fsync.rate"].value == 1234.0
    once = {step.name: result(step.profile) for step in steps()}
    assert len(peers.told(found).rows) == len(peers.told(once).rows)
