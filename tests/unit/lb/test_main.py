"""The command, and what it shows."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from inventory.inventory import Inventory
from inventory.serving import FORCE
from lb import __main__ as command
from lb import agents, fleet, runtime, view
from lb.apply import Applied
from lb.errors import BalancerUnreachable, NotReached
from lb.fleet import BrokerStates, Fleet
from lb.render import marker, render
from lb.view import Shown
from tests.support.balancer import PASSWORD, UP, inventory

HIDDEN_DRAIN = dataclasses.replace(UP, name="mb2", verdict="down", drained=True)


@pytest.fixture(autouse=True)
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = inventory(base=tmp_path)
    process = runtime.Process(pid=4711, uptime_s=1, description="marker")
    monkeypatch.setattr(command, "load", lambda _path: read)
    monkeypatch.setattr(runtime, "process", lambda _socket: process)
    monkeypatch.setattr(runtime, "servers", lambda _socket: {"mb1": UP, "mb2": HIDDEN_DRAIN})
    monkeypatch.setattr(agents, "reasons", lambda _inventory, _names: {"mb2": "memory alarm"})


def run(*words: str) -> Result:
    return CliRunner().invoke(command.cli, list(words), prog_name="python -m lb")


def test_an_unknown_command_is_wrong_use() -> None:
    assert run("stauts").exit_code == 2


def test_what_is_printed_hides_the_login() -> None:
    shown = run("render").output
    assert "server mb1 10.0.1.1:5672" in shown
    assert "tcp-check send-binary ***" in shown
    assert PASSWORD.encode().hex() not in shown


def test_what_is_written_does_not(tmp_path: Path) -> None:
    assert run("render", "--out", str(tmp_path / "out")).output == ""
    assert PASSWORD.encode().hex() in (tmp_path / "out").read_text()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("applied", "said"),
    [
        (Applied(changed=True, reloaded=True, pid=7), "reloaded: process 7 serves\n"),
        (Applied(changed=False, reloaded=False, pid=7), "nothing to do\n"),
        (Applied(changed=True, reloaded=False, pid=0), "written; HAProxy does not run\n"),
    ],
)
def test_apply_says_what_it_did(
    applied: Applied, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply_all(read: Inventory, _reach: object, *, reload: bool) -> object:
        return [(read.balancer, applied)]

    monkeypatch.setattr(command, "apply_all", apply_all)
    assert run("apply").output == said


def test_status_for_people() -> None:
    shown = run("status").output
    assert "mb1" in shown
    assert "down, drained" in shown
    assert f"agent: {HIDDEN_DRAIN.agent} (memory alarm)" in shown


def test_status_for_programs() -> None:
    shown = json.loads(run("status", "--json").output)
    (one,) = shown["balancers"]
    assert one["process"]["pid"] == 4711
    assert [server["verdict"] for server in one["servers"]] == ["up", "down"]


def test_a_drain_prints_what_haproxy_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def drain(*_: object, **__: object) -> dict[str, runtime.ServerState]:
        return {"haproxy": UP}

    monkeypatch.setattr(agents, "drain", drain)
    assert run("drain", "mb1", FORCE).output.startswith("mb1 up sessions=1 weight=100")


@pytest.mark.parametrize(
    "words", [("drain",), ("drain", "--by-hand"), ("maint",), ("weight", "0")], ids=" ".join
)
def test_the_last_broker_that_takes_publishes_is_taken_out_by_no_order_unless_that_is_forced(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered: list[str] = []

    def order(*said: object, **_: object) -> BrokerStates:
        ordered.append(words[0])
        return BrokerStates({}, {})

    monkeypatch.setattr(agents, "drain", lambda *_, **__: order().shown)
    for name in ("set_drain", "maint", "set_weight"):
        monkeypatch.setattr(fleet, name, order)
    word, *more = words
    refused = run(word, "mb1", *more)
    assert refused.exit_code == 1
    assert "mb1 is not taken out: 0 other brokers take publishes, 1 must: mb2" in refused.stderr
    assert f"do it all the same with {FORCE}" in refused.stderr
    assert not ordered
    assert run(word, "mb1", *more, FORCE).exit_code == 0
    # One that takes none is no loss, and two are enough.
    assert run(word, "mb2", *more).exit_code == 0
    monkeypatch.setattr(runtime, "servers", lambda _socket: {"mb1": UP, "mb2": UP})
    assert run(word, "mb1", *more).exit_code == 0
    assert len(ordered) == 3

    def silent(_socket: Path) -> None:
        raise BalancerUnreachable("nobody on the socket")

    monkeypatch.setattr(runtime, "servers", silent)
    assert run(word, "mb1", *more).exit_code == 1


def test_a_fault_is_one_line_and_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NotReached("mb1 is not\nseen as ready")

    monkeypatch.setattr(agents, "ready", fail)
    failed = run("ready", "mb1")
    assert (failed.exit_code, failed.stderr) == (6, "lb: mb1 is not seen as ready\n")


def test_a_silent_haproxy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_socket: Path) -> None:
        raise BalancerUnreachable("nobody on the socket")

    monkeypatch.setattr(runtime, "process", fail)
    silent = run("status")
    assert (silent.exit_code, silent.output) == (6, "haproxy  no answer: nobody on the socket\n")


def test_orders_by_hand_go_to_the_socket_and_are_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[object] = []
    shows = {"mb1": dataclasses.replace(UP, agent="L4TOUT"), "mb2": UP}

    def change(name: str, **what: object) -> None:
        orders.append(what)
        shows[name] = dataclasses.replace(shows[name], **what)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime, "servers", lambda _socket: shows)
    monkeypatch.setattr(
        runtime, "maint", lambda _s, name, *, on: change(name, verdict="maint" if on else "up")
    )
    monkeypatch.setattr(runtime, "set_drain", lambda _s, name, *, on: change(name, drained=on))
    monkeypatch.setattr(runtime, "set_weight", lambda _s, name, weight: change(name, weight=weight))
    assert run("maint", "10.0.1.1:5672").output.startswith("mb1 maint ")
    assert run("maint", "mb1", "--off").exit_code == 0
    assert run("weight", "mb1", "40").exit_code == 0
    refused = run("drain", "mb1", "--by-hand", "--within-s", "5")
    assert (refused.exit_code, "--within-s: with --by-hand" in refused.output) == (2, True)
    assert run("drain", "mb1", "--by-hand").exit_code == 0
    assert run("ready", "mb1", "--by-hand").exit_code == 0
    assert orders == [
        {"verdict": "maint"},
        {"verdict": "up"},
        {"weight": 40},
        {"drained": True},
        {"drained": False},
    ]


@pytest.mark.parametrize(
    "words", [("maint", "mb1", "--off"), ("weight", "mb1", "40")], ids=" ".join
)
def test_consent_is_refused_where_the_command_takes_no_broker_out(words: tuple[str, ...]) -> None:
    refused = run(*words, FORCE)
    assert (refused.exit_code, "the broker is not taken out" in refused.stderr) == (2, True)


def test_a_balancer_that_is_left_out_is_tried_last(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Applied(changed=True, reloaded=True, pid=7)
    tried: list[object] = ["no route to it", Applied(changed=False, reloaded=False, pid=7)]
    two = inventory()
    second = dataclasses.replace(two.balancer, name="lb2")
    both = dataclasses.replace(two, balancers=(two.balancer, second))
    monkeypatch.setattr(command, "load", lambda _path: both)
    monkeypatch.setattr(command, "apply_all", lambda *_, **__: [(both.balancer, done)])
    monkeypatch.setattr(command, "apply_absent", lambda *_: tried.pop(0))
    assert run("apply", "--without", "lb2").output.splitlines() == [
        "haproxy: reloaded: process 7 serves",
        "lb2: left out: no route to it",
    ]
    assert run("apply", "--without", "lb2").output.splitlines()[1] == "lb2: nothing to do"


def test_an_inventory_is_checked_and_one_balancer_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "check_all", lambda *_: None)
    assert run("check").output == "good: 2 brokers of test\n"
    assert "server mb1 10.0.1.1:5672" in run("render", "--balancer", "haproxy").output
    assert run("render", "--balancer", "lb9").exit_code == 2


def test_a_start_is_prepared_and_a_state_saved_on_the_balancer_s_own_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(command, "prepare_start", lambda _: done.append("prepared"))
    monkeypatch.setattr(command, "save_state", lambda _: done.append("saved"))
    assert (run("prepare-start").exit_code, run("save-state").exit_code) == (0, 0)
    assert done == ["prepared", "saved"]
    read = inventory()
    away = read.at(dataclasses.replace(read.balancer, host="a1"))
    monkeypatch.setattr(command, "load", lambda _path: away)
    refused = run("save-state")
    assert (refused.exit_code, "see lb/keeper.py" in refused.stderr) == (2, True)


def test_a_state_that_cannot_be_saved_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[BalancerUnreachable | None] = [
        *(BalancerUnreachable("nobody"), BalancerUnreachable("nobody"), None),
        BalancerUnreachable("nobody"),
    ]

    def save(_read: Inventory) -> None:
        if not ends:
            raise KeyboardInterrupt
        if fault := ends.pop(0):
            raise fault

    monkeypatch.setattr(command, "save_state", save)
    monkeypatch.setattr(threading.Event, "wait", lambda *_: False)
    ended = run("save-state", "--every-s", "0.1")
    assert ended.exit_code == 130
    assert ended.stderr.count("not saved: nobody") == 2


def test_a_weight_out_of_range_is_wrong_use() -> None:
    assert run("weight", "mb1", "300").exit_code == 2


PROCESS = runtime.Process(pid=4711, uptime_s=7_380, description="x")
DOWN = dataclasses.replace(UP, name="mb2", verdict="down", drained=True, changed_s=90_061)


def text_of(shown: list[Shown]) -> str:
    console = Console(width=160, file=io.StringIO(), record=True)
    for line in view.headlines(shown):
        console.print(line)
    console.print(view.server_table(shown))
    return console.export_text()


def test_a_broker_that_gets_no_publishers_has_a_sentence_with_since_when_and_why() -> None:
    drain = dataclasses.replace(UP, name="mb3", verdict="drain", drained=True, check="", agent="")
    one = Shown(
        name="lb1", process=PROCESS, servers=(UP, dataclasses.replace(DOWN, check="L4TOUT"))
    )
    other = Shown(name="lb2", process=PROCESS, servers=(drain,))
    assert view.names_not_up([one, other]) == {"mb2", "mb3"}
    assert [str(line) for line in view.not_up([one], {"mb2": "no AMQP"})] == [
        f"mb2: down, drained for 1 day 1 h; gate check: L4TOUT; agent: {DOWN.agent} (no AMQP)"
    ]
    assert [str(line).partition(" for ")[0] for line in view.not_up([one, other], {})] == [
        "mb2 at lb1: down, drained",
        "mb3 at lb2: drain",
    ]


def test_no_address_is_cut_at_80_columns() -> None:
    servers = [
        dataclasses.replace(
            DOWN, address="127.0.41.13:5672", check="L4CON " * 9, agent="says ready"
        ),
        dataclasses.replace(UP, changed_s=59 * 60 + 59),
    ]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(view.server_table([Shown(name="lb1", servers=servers)], console.width))
    shown = console.export_text()
    assert "127.0.41.13:5672   down, drained" in shown
    assert all(text in shown for text in ("sessions", "says ready", "59 min 59 s"))


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
    assert "differs from the inventory: python -m lb apply" in lines[1]
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
