"""Figures of operators' acts and of brokers that come and die, from rows as load processes record them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from bench.errors import BenchError, InputInvalid
from bench.figures.playbooks import (
    Act,
    Run,
    S,
    Took,
    acts_on,
    attach_s,
    doubled,
    excess_s,
    failovers,
    figures_of,
    figures_of_failovers,
    gaps_s,
    lost,
)
from bench.rows import Events, Row
from lb.__main__ import cli as lb_cli
from messagebus.recording.manifest import Incident
from ops.__main__ import cli as ops_cli


def ns(seconds: float) -> int:
    return int(seconds * S)


def took(begin_s: float, done_s: float, until_s: float) -> Took:
    return Took(ns(begin_s), ns(done_s), ns(until_s))


def confirmed(*times_s: float, publisher: str = "p1", broker: str = "b1:1") -> list[Row]:
    """Return confirmed rows; each was intended a hundredth of a second after the confirm before it."""
    rows: list[Row] = []
    for number, at_s in enumerate(times_s):
        waited_since = times_s[number - 1] + 0.01 if number else at_s - 0.01
        rows.append(
            {
                "message_id": f"{publisher}-{number}",
                "publisher": publisher,
                "outcome": "confirmed",
                "broker": broker,
                "intended_ns": ns(waited_since),
                "confirmed_ns": ns(at_s),
            }
        )
    return rows


def delivered(*ids: str, at_s: float = 1.0) -> list[Row]:
    return [{"message_id": id, "received_ns": ns(at_s)} for id in ids]


def test_a_gap_counts_from_the_beginning_of_the_act_on() -> None:
    events = Events(published=confirmed(0.1, 2.0, 2.1, 2.5, 4.0))
    assert gaps_s(events, took(1.0, 2.2, 3.0))["p1"] == pytest.approx(1.49)
    assert gaps_s(events, took(1.7, 2.2, 2.3))["p1"] == pytest.approx(0.39)


def test_a_silence_that_goes_on_after_the_act_counts_whole() -> None:
    events = Events(published=confirmed(1.1, 1.2, 9.0))
    assert gaps_s(events, took(1.0, 2.0, 3.0))["p1"] == pytest.approx(7.79)


def test_a_silence_without_an_end_is_an_error() -> None:
    with pytest.raises(BenchError, match="no confirm"):
        gaps_s(Events(published=confirmed(1.1, 1.2)), took(1.0, 2.0, 3.0))


def test_what_was_never_confirmed_opens_a_silence_to_the_next_confirm() -> None:
    events = Events(published=confirmed(1.1, 1.2, 9.0, 9.01))
    events.published[2]["intended_ns"] = ns(8.9)
    events.published.append({"publisher": "p1", "outcome": "unknown", "intended_ns": ns(1.3)})
    assert gaps_s(events, took(1.0, 2.0, 3.0))["p1"] == pytest.approx(7.7)


def test_every_publisher_is_judged_or_the_worst_of_each_time() -> None:
    assert excess_s([{"p1": 0.3, "p2": 0.2}], 0.1) == [0.2, 0.1]
    assert excess_s([{"p1": 0.3, "p2": 0.2}, {"p1": 0.1, "p2": 0.6}], 0.1) == [0.2, 0.5]


def test_the_last_consumer_to_attach_counts() -> None:
    links = {"c1": {"b2:1": ns(3.5), "b1:1": 0}, "c2": {"b2:1": ns(4.25)}}
    assert attach_s(links, "b2:1", ns(3)) == pytest.approx(1.25)
    with pytest.raises(BenchError, match="not attached to b1:1: c2"):
        attach_s(links, "b1:1", ns(3))


def test_lost_and_doubled_are_counted_by_id() -> None:
    events = Events(published=confirmed(1, 2, 3), delivered=delivered("p1-0", "p1-2", "p1-2"))
    assert [row["message_id"] for row in lost(events)] == ["p1-1"]
    assert doubled(events.delivered, until_ns=ns(2)) == 1
    assert doubled(events.delivered, until_ns=ns(1)) == 0


def figures(events: Events, killed: Incident) -> dict[str, Any]:
    run = Run(
        consumers=4,
        quiet=took(0, 1, 1),
        acts=[(Act("add", "Broker added", ()), [took(1, 3, 4)])],
        attached_s=2.5,
        killed=killed,
    )
    return {figure.id: figure for figure in figures_of(run, events, "again")}


def test_what_lay_on_the_disk_of_a_broker_that_died_is_told_apart() -> None:
    events = Events(
        published=[
            *confirmed(0.5, 1.5, 5.0, 9.0, broker="dead:1"),
            *confirmed(0.5, 1.5, 5.0, publisher="p2", broker="b1:1"),
        ],
        delivered=delivered("p1-0", "p2-0", "p2-1"),
    )
    killed = Incident(kind="kill", broker="dead:1", at_ns=ns(5), done_ns=ns(6))
    found = figures(events, killed)
    assert (found["ops.replace.on_disk"].value, found["ops.lost"].value) == (2, 2)
    assert found["ops.lost"].met is False
    assert found["ops.doubled"].met is True


def test_goals_are_above_the_quiet_period_of_the_same_run() -> None:
    events = Events(published=confirmed(0.1, 0.9, 1.1, 1.9, 4.5), delivered=[])
    killed = Incident(kind="kill", broker="dead:1", at_ns=ns(5), done_ns=ns(6))
    found = figures(events, killed)
    assert found["ops.quiet.gap_s"].value == pytest.approx(0.79)
    assert found["ops.add.gap_s"].value == pytest.approx(2.59 - 0.79)
    assert found["ops.add.gap_s"].met is False
    assert found["ops.add.s"].value == 2.0
    assert found["ops.add.attach_s"].met is False


KITS: dict[str, click.Group] = {"lb": lb_cli, "ops": ops_cli}


@pytest.mark.parametrize("act", acts_on("mb3", "mb2"), ids=lambda act: act.name)
def test_every_act_is_a_command_that_there_is(act: Act) -> None:
    kit, verb, *words = act.words
    command = KITS[kit].get_command(click.Context(KITS[kit]), verb)
    assert command
    command.make_context(verb, words)


def write(folder: Path, number: int, *, steps: dict[str, float], serving_s: float = 20.0) -> None:
    found = {"steps_s": steps, "serving_s": serving_s, "resync_s": 3.0, "confirmed": 900}
    (folder / f"failover-{number}.json").write_text(json.dumps(found))


def test_each_step_has_its_median_and_the_words_of_the_first_time(tmp_path: Path) -> None:
    for number, seconds in enumerate((1.0, 3.0, 2.0)):
        host = ("db1", "db2")[number % 2]
        write(tmp_path, number, steps={f"promote {host}": seconds, "mount": 0.5})
    found = {figure.id: figure for figure in figures_of_failovers(failovers(tmp_path))}
    assert found["ops.failover.serving_s"].samples == (20.0, 20.0, 20.0)
    assert found["ops.failover.step01_s"].value == 2.0
    assert found["ops.failover.step01_s"].what.endswith("step 1: promote db1")
    assert found["ops.failover.rest_s"].value == 17.5
    assert found["ops.failover.resync_s"].value == 3.0


def test_a_publish_waits_for_no_step_behind_the_broker_s_start(tmp_path: Path) -> None:
    steps = {"promote db1": 1.0, "start broker mb1 on db1": 9.0, "write it down": 4.0}
    write(tmp_path, 1, steps=steps, serving_s=12.0)
    found = {each.id: each for each in figures_of_failovers(failovers(tmp_path))}
    assert found["ops.failover.rest_s"].value == 2.0
    assert found["ops.failover.step03_s"].what.startswith("after it")


def test_without_a_power_off_it_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="pytest tests/hosts"):
        failovers(tmp_path)


def test_what_is_no_failover_is_told_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "failover-1.json").write_text('{"steps_s": []}')
    with pytest.raises(InputInvalid, match=r"failover-1\.json"):
        failovers(tmp_path)


def test_different_playbooks_have_no_median(tmp_path: Path) -> None:
    write(tmp_path, 1, steps={"promote": 1.0})
    write(tmp_path, 2, steps={"promote": 1.0, "mount": 0.5})
    with pytest.raises(InputInvalid, match="different playbooks"):
        list(figures_of_failovers(failovers(tmp_path)))
