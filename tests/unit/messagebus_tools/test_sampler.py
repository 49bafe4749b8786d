"""The sampler without its thread: agents' answers are written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagebus.admin.directory import SubscriptionCount, SubscriptionCounts
from messagebus.config import BusConfig
from messagebus.errors import ConfigError, ListUnavailable, NameInvalid
from messagebus.recording.events import SAMPLED
from messagebus.recording.files import EventFile, anchor_now
from messagebus_tools.sampler import QueueSampler

BUS = BusConfig(list_urls=("http://127.0.0.1:1/consumer-list",))
NAMES = ["orders/billing", "queue:jobs"]


def counted(name: str, unacked: int | None = None) -> SubscriptionCount:
    return SubscriptionCount(name=name, broker="mb1", ready=5, consumers=1, unacked=unacked)


def sampled(
    tmp_path: Path, *answers: SubscriptionCounts | Exception
) -> tuple[QueueSampler, list[Any]]:
    """Look once for each answer; return the sampler, and its rows."""
    said: Iterator[SubscriptionCounts | Exception] = iter(answers)

    def count(_bus: BusConfig) -> SubscriptionCounts:
        answer = next(said)
        if isinstance(answer, Exception):
            raise answer
        return answer

    sampler = QueueSampler(tmp_path, BUS, NAMES, run_id="r", count=count)
    path = tmp_path / "sampled-x.ndjson"
    with EventFile(path, anchor_now("x"), clock_ns=lambda: 0) as file:
        for _ in answers:
            sampler.look(file)
    return sampler, [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_rows_have_the_columns_of_samples_and_the_names_of_recorded_rows(tmp_path: Path) -> None:
    counts = (counted("orders/billing"), counted("queue:jobs", unacked=2), counted("orders/other"))
    sampler, rows = sampled(tmp_path, SubscriptionCounts(counts))
    assert all(set(row) == {column.name for column in SAMPLED} for row in rows)
    assert [(row["topic"], row["subscription"], row["ready"], row["unacked"]) for row in rows] == [
        ("orders", "billing", 5, None),
        ("queue:jobs", "jobs", 5, 2),
    ]
    assert (sampler.stats().written, sampler.stats().missed) == (2, 0)


def test_who_does_not_answer_has_no_row_and_is_counted(tmp_path: Path) -> None:
    some = SubscriptionCounts((counted("orders/billing"),), {"mb2": "timed out"})
    sampler, rows = sampled(tmp_path, ListUnavailable("no list"), some)
    assert [row["broker"] for row in rows] == ["mb1"]
    assert sampler.stats().missed == 2


def test_a_run_is_complete_when_its_sampler_has_ended(tmp_path: Path) -> None:
    answer = SubscriptionCounts((counted("orders/billing"),))
    sampler = QueueSampler(tmp_path / "run", BUS, NAMES, run_id="r", count=lambda _: answer)
    with sampler:
        assert not json.loads((tmp_path / "run" / "manifest.json").read_text())["complete"]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["complete"], manifest["topics"]) == (True, {})
    assert sampler.stats().written == 1


@pytest.mark.parametrize("names", [["orders"], ["orders/delay:5s"]])
def test_what_nobody_reads_from_has_no_depth(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(NameInvalid):
        QueueSampler(tmp_path, BUS, names, run_id="r")


def test_no_names_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        QueueSampler(tmp_path, BUS, [], run_id="r")
