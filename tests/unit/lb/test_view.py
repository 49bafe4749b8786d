from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from lb import runtime, view
from lb.errors import BalancerUnreachable
from lb.fleet import Fleet
from lb.render import marker, render
from lb.view import Shown
from tests.support.balancer import UP, inventory

PROCESS = runtime.Process(pid=4711, uptime_s=7_380, description="x")
DOWN = dataclasses.replace(UP, name="mb2", verdict="down", drained=True, changed_s=90_061)


def text_of(shown: list[Shown]) -> str:
    console = Console(width=160, file=io.StringIO(), record=True)
    for line in view.headlines(shown):
        console.print(line)
    console.print(view.server_table(shown))
    return console.export_text()


def test_people_see_each_broker_and_who_serves() -> None:
    shown = text_of([Shown(name="lb1", process=PROCESS, servers=(UP, DOWN), current=True)])
    assert "lb1  process 4711, up 2 h 3 min, 1 of 2 brokers up, 2 sessions\n" in shown
    assert "down, drained" in shown
    assert "1 day 1 h" in shown
    assert "balancer" not in shown


def test_what_several_balancers_say_of_one_broker_stands_together() -> None:
    one = Shown(name="lb1", process=PROCESS, servers=(UP, DOWN), current=True)
    other = Shown(name="lb2", process=PROCESS, servers=(DOWN, UP), current=False)
    gone = Shown(name="lb3", fault="no route")
    lines = text_of([one, other, gone]).splitlines()
    assert "not what the inventory says: python -m lb apply" in lines[1]
    assert "lb3  no answer: no route" in lines[2]
    rows = [line.split() for line in lines if "lb1 " in line or "lb2 " in line][2:]
    assert [row[:1] for row in rows[::2]] == [["mb1"], ["mb2"]]
    assert [row[0] for row in rows[1::2]] == ["lb2", "lb2"]


def test_a_configuration_of_another_inventory_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    read = inventory()
    description = marker(render(read))
    monkeypatch.setattr(
        runtime, "process", lambda _: dataclasses.replace(PROCESS, description=description)
    )
    monkeypatch.setattr(runtime, "servers", lambda _: {"mb1": UP})
    fleet = Fleet({"haproxy": Path("x")})
    assert [each.current for each in view.look(read, fleet)] == [True]
    assert [each.current for each in view.look(inventory(3), fleet)] == [False]
    unread = dataclasses.replace(read.balancer, probe_password=None)
    shown = view.look(read.at(unread), fleet)
    assert [each.current for each in shown] == [None]
    assert json.loads(json.dumps(view.plain(shown)))["balancers"][0]["process"]["pid"] == 4711


def test_who_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise BalancerUnreachable("nobody")

    monkeypatch.setattr(runtime, "process", fail)
    assert [each.fault for each in view.look(inventory(), Fleet({"haproxy": Path("x")}))] == [
        "nobody"
    ]
    away = Fleet({}, {"haproxy": "no route"})
    assert [each.fault for each in view.look(inventory(), away)] == ["no route"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3_601, "1 h"), (200_000, "2 days 7 h")],
)
def test_times_in_words(seconds: int, words: str) -> None:
    assert view.in_words(seconds) == words
