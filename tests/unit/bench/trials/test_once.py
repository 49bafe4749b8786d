"""The whole way behind the servers: rows of a database, the judge, events, the audit, table and figures."""

import io
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.audit import audit
from bench.rows import read_events
from bench.trials import once as trials_once
from bench.trials.once import RULES, Trial, differences, figures_of, table_of
from bench.trials.once_app import DDL, TABLES
from bench.trials.once_judge import STOOD, STORE_AWAY, Happening, Verdict, judge_effects
from bench.trials.once_rows import effects_of, noted, noted_done, noted_happenings, write_events
from bench.trials.once_site import FAULTS
from ops.local.cluster import LocalCluster

S = 1_000_000_000
BROKERS = ("127.0.0.11:5672", "127.0.0.12:5672")
COUNT = 30

Rows = dict[str, list[dict[str, Any]]]


def message_id(number: int, place: str) -> str:
    return f"{place}-{number}".encode().hex().zfill(32)


def effect(table: str, number: int, *, at_s: float = 0) -> dict[str, Any]:
    began = int((at_s or number + 0.5) * S)
    place = "next" if table == "ledger" else "order"
    return {
        **{"number": number, "process": "worker-1.1", "run": f"worker-1.1:{table}{began}"},
        **{"began_ns": began, "ended_ns": began + S // 100, "received_ns": began},
        **{"message_id": message_id(number, place), "broker": BROKERS[number % 2]},
        **{"redelivered": False, "body": b'{"number":%d}' % number},
        "next_id": message_id(number, "next") if table == "bills" else "",
    }


@pytest.fixture
def rows() -> Rows:
    orders: list[dict[str, Any]] = [
        {
            **{"number": number, "message_id": message_id(number, "order")},
            **{"began_ns": number * S, "ended_ns": number * S + 1, "process": "application-1.1"},
            "body": b'{"number":%d}' % number,
        }
        for number in range(1, COUNT + 1)
    ]
    return {
        "orders": orders,
        **{table: [effect(table, each["number"]) for each in orders] for table in TABLES},
    }


def verdict_of(rows: Rows) -> Verdict:
    orders = {row["number"] for row in rows["orders"]}
    done = {(row["process"], row["message_id"]): row["ended_ns"] for row in rows["points"]}
    tables = [
        judge_effects(table, rule, orders, effects_of(rows[table], done))
        for table, rule in RULES.items()
    ]
    return Verdict(
        orders=len(orders),
        rolled_back=1,
        copies=1,
        parked=0,
        tables=tables,
        kills=dict.fromkeys(FAULTS, 1),
    )


def judged(rows: Rows, folder: Path) -> tuple[Verdict, list[str], list[str]]:
    """Return the verdict, how it differs from the audit of the events, and the audit's faults."""
    manifest = write_events(folder / "events", rows, brokers=BROKERS, incidents=(), began_ns=S // 2)
    result = audit(manifest, read_events(folder / "events", manifest))
    verdict = verdict_of(rows)
    return verdict, differences(verdict, result), result.faults


def test_a_clean_run_holds_for_the_judge_and_for_the_audit_of_its_events(
    rows: Rows, tmp_path: Path
) -> None:
    verdict, differs, faults = judged(rows, tmp_path)
    assert (verdict.faults, differs, faults) == ([], [], [])


def test_the_audit_counts_what_is_planted_as_the_judge_does(rows: Rows, tmp_path: Path) -> None:
    del rows["bills"][4]
    rows["points"].append(effect("points", 7, at_s=40))
    rows["points"].append(effect("points", 500))
    verdict, differs, faults = judged(rows, tmp_path)
    assert differs == []
    assert len(verdict.faults) == 3
    # The bill that is missing had a next message, which nobody published then.
    assert "1 confirmed and never delivered" in faults
    assert any("never published" in fault for fault in faults)


def test_a_count_that_differs_is_told(rows: Rows, tmp_path: Path) -> None:
    manifest = write_events(tmp_path / "e", rows, brokers=BROKERS, incidents=(), began_ns=0)
    ours = audit(manifest, read_events(tmp_path / "e", manifest))
    rows["bills"].pop()
    assert differences(verdict_of(rows), ours) == [
        "bills effects: 29 here, 30 in the audit",
        "bills missing: 1 here, 0 in the audit",
    ]


def test_the_table_shows_controls_beside_what_is_promised(rows: Rows) -> None:
    del rows["setnx"][:3]
    rows["polled"] += [effect("polled", number, at_s=50) for number in range(1, 6)]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table_of(verdict_of(rows)))
    shown = console.export_text().splitlines()
    assert next(line for line in shown if "SETNX" in line).split()[-4:] == ["27", "3", "0", "0"]
    assert next(line for line in shown if "poller" in line).split()[-4:] == ["35", "0", "0", "5"]
    assert all(len(line) <= 100 for line in shown)


def test_a_control_that_was_not_waited_for_may_not_have_lost_what_it_misses(rows: Rows) -> None:
    del rows["setnx"][:3]
    verdict = verdict_of(rows)
    verdict.tables[list(RULES).index("setnx")].waited_for = False
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table_of(verdict))
    shown = console.export_text().splitlines()
    assert "<= 3" in next(line for line in shown if "SETNX" in line)
    figures = {each.id: each for each in figures_of(verdict, "a run", "again")}
    assert figures["once.trial.setnx.lost"].what.endswith("lost, or not waited for")


@pytest.mark.parametrize(
    ("polled", "waits", "is_whole"),
    [
        pytest.param([0, 1, 2, 3], math.inf, True, id="until it has all"),
        pytest.param([0, 1, 1, 1, 1, 1], math.inf, False, id="no longer than it moves"),
        pytest.param(range(9), 0, False, id="no longer than its time"),
    ],
)
def test_what_is_slow_is_waited_for(
    polled: Iterable[int],
    waits: float,
    is_whole: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = Trial(LocalCluster(tmp_path / "cluster"), tmp_path / "run", seconds=1, orders=3, seed=1)
    came = iter(polled)
    monkeypatch.setattr(Trial, "_counts", lambda _: {"orders": 3, "polled": next(came)})
    monkeypatch.setattr(trials_once, "LOOK_S", 0.01)
    monkeypatch.setattr(trials_once, "STALLED_S", 0.015)
    has_all = trial._wait(
        lambda now: now["polled"] >= now["orders"],
        quiet_s=0,
        of=("polled",),
        until_s=time.monotonic() + waits,
    )
    assert has_all is is_whole


def test_figures_of_the_promise_have_goals_and_those_of_controls_none(rows: Rows) -> None:
    del rows["setnx"][:3]
    figures = {each.id: each for each in figures_of(verdict_of(rows), "a run", "again")}
    assert figures["once.trial.bills.lost"].met is True
    assert (figures["once.trial.setnx.lost"].value, figures["once.trial.setnx.lost"].goal) == (
        3,
        "",
    )
    assert figures["once.trial.points.unexplained"].met is True
    rows["bills"].append(effect("bills", 3, at_s=60))
    figures = {each.id: each for each in figures_of(verdict_of(rows), "a run", "again")}
    assert figures["once.trial.bills.doubled"].met is False


def test_what_processes_note_of_themselves_is_read_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "stood.worker-1.2").write_text(f"{5 * S} {9 * S}\n")
    (tmp_path / "store.worker-2.1").write_text(
        f"away {20 * S}\naway {80 * S}\nback {90 * S}\naway {95 * S}\nback {96 * S}\n"
    )
    (tmp_path / "copies.worker-1.2").write_text("bills\nledger\n")
    assert noted_happenings(tmp_path) == [
        Happening(STOOD, "worker-1.2", 5 * S, 9 * S),
        Happening(STORE_AWAY, "worker-2.1", 19 * S, 90 * S),
        Happening(STORE_AWAY, "worker-2.1", 94 * S, 96 * S),
    ]
    assert noted(tmp_path, "copies") == ["bills", "ledger"]
    (tmp_path / "done.worker-1.2").write_text("ab 5\nab 9\n")
    assert noted_done(tmp_path) == {("worker-1.2", "ab"): 5}


def test_each_table_of_effects_has_its_rule_and_its_place() -> None:
    assert set(RULES) == set(TABLES)
    made = " ".join(DDL)
    assert all(f"CREATE TABLE {table} " in made for table in (*TABLES, "orders", "hand_outbox"))
