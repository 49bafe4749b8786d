"""Programs' view of the monitor: the same snapshot as JSON, its own figures, playbooks of `ops`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from messagebus import Secret
from messagebus.__main__ import cli
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.people import is_password
from messagebus.services.monitor.playbooks import BYTES_MAX, Playbook, Playbooks
from ops.run.journal import Journal, abandon
from tests.support.watched import PROXIED, MadeUp
from tests.unit.services.monitor.test_web import client_of, configured, monitor_of, token_of


async def answered(address: str, config: MonitorConfig | None = None) -> tuple[int, str]:
    monitor, _ = await monitor_of(config or configured())
    async with client_of(monitor) as client:
        bearer = {"Authorization": f"Bearer {token_of('viewer-1')}"} if config is None else {}
        answer = await client.get(address, headers=bearer)
    return answer.status_code, answer.text


async def test_each_page_has_its_figures_as_json_and_a_silent_broker_has_none() -> None:
    told = {
        what: json.loads((await answered(f"/api/v1/{what}"))[1])
        for what in ("overview", "brokers", "subscriptions", "clients", "rules", "events")
    }
    assert told["overview"]["silent"] == ["mb8.example:5672"]
    (silent,) = [each for each in told["brokers"] if each["broker"] == "mb8.example:5672"]
    assert silent["state"] is silent["waiting"] is None
    (fraud,) = [each for each in told["subscriptions"] if each["name"] == "payments/fraud"]
    assert fraud["parked"] == 41
    rows = {each["broker"]: each["row"] for each in fraud["brokers"]}
    assert rows["mb8.example:5672"] is None
    assert fraud["waiting"] == sum(row["ready"] + row["unacked"] for row in rows.values() if row)
    assert told["clients"][0]["id"] == "report-nightly@batch-2"


async def test_the_depth_of_a_subscription_is_told_only_while_all_brokers_answer() -> None:
    status, text = await answered("/api/v1/depth?source=payments/fraud")
    assert status == 503
    assert list(json.loads(text)["without"]) == ["mb8.example:5672"]
    monitor, _ = await monitor_of(configured(), MadeUp(silent=False))
    bearer = {"Authorization": f"Bearer {token_of('viewer-1')}"}
    async with client_of(monitor) as client:
        got = await client.get("/api/v1/depth?source=payments/fraud", headers=bearer)
        rows = (await client.get("/api/v1/subscriptions", headers=bearer)).json()
        (row,) = [each for each in rows if each["name"] == "payments/fraud"]
        assert (got.status_code, got.json()["waiting"]) == (200, row["waiting"])
        assert isinstance(row["waiting"], int)
        unknown = await client.get("/api/v1/depth?source=no/such", headers=bearer)
        assert (unknown.status_code, "no/such" in unknown.text) == (404, True)
        bus = monitor.watch.board.view.bus
        monitor.watch.board = replace(
            monitor.watch.board,
            view=replace(monitor.watch.board.view, bus=replace(bus, at_ms=bus.at_ms - 60_000)),
        )
        old = await client.get("/api/v1/depth?source=payments/fraud", headers=bearer)
        assert (old.status_code, old.json()["error"]) == (503, "nothing was observed lately")


async def test_what_there_is_not_is_named_and_nobody_gets_nothing() -> None:
    status, text = await answered("/api/v1/everything")
    assert status == 404
    assert "overview" in text
    monitor, _ = await monitor_of(configured())
    async with client_of(monitor) as client:
        for address in ("/api/v1/overview", "/metrics"):
            assert (await client.get(address)).status_code == 401


@pytest.mark.parametrize("id", ["abc", "a%00b" * 2, "x" * 300])
async def test_an_id_that_is_none_is_no_trace(id: str) -> None:
    status, text = await answered(f"/api/v1/trace/{id}")
    assert status == 422
    assert json.loads(text)["error"]


def test_a_password_is_kept_as_what_stands_for_it() -> None:
    done = CliRunner().invoke(cli, ["monitor", "--hash-password"], input="correct horse\n")
    assert done.exit_code == 0
    assert is_password("correct horse", Secret(done.stdout.strip()))
    assert "correct horse" not in done.output


async def test_metrics_are_of_the_monitor_itself() -> None:
    _, text = await answered("/metrics")
    assert "messagebus_monitor_brokers_silent 1\n" in text
    assert "# TYPE messagebus_monitor_observations_total counter" in text


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """Journals as `ops` writes them: one open, one ended, one abandoned, one of nobody's."""
    for name in ("remove mb3", "upgrade", "add mb9"):
        journal = Journal(tmp_path, name)
        journal.begin({"x": 1}, brokers=["mb3"])
        journal.record("drain mb3", 1.5, "no publisher is left")
        journal.record("stop mb3", 0.5)
        journal.take_back("stop mb3")
    Journal(tmp_path, "upgrade").finish()
    abandon(tmp_path, "add mb9")
    (tmp_path / "odd.jsonl").write_text("not json\n")
    return tmp_path


def test_playbooks_are_read_as_ops_writes_them(journals: Path) -> None:
    found = {each.name: each for each in Playbooks(str(journals)).runs()}
    assert {name: each.ended for name, each in found.items()} == {
        "remove mb3": "", "odd": "", "upgrade": "ended", "add mb9": "abandoned",
    }  # fmt: skip
    run = found["remove mb3"]
    assert run.steps == ("drain mb3",)
    assert run.proof == "no publisher is left"
    assert "@" in run.who
    assert found["odd"].fault


def test_a_folder_that_is_away_is_a_fault_and_no_folder_is_none(tmp_path: Path) -> None:
    (away,) = Playbooks(str(tmp_path / "nowhere")).runs()
    assert "No such file" in away.fault
    assert Playbooks("").runs() == []


def test_a_journal_of_any_size_costs_a_bounded_read(tmp_path: Path) -> None:
    (tmp_path / "big.jsonl").write_bytes(b"x" * (2 * BYTES_MAX))
    (run,) = Playbooks(str(tmp_path)).runs()
    assert isinstance(run, Playbook)
    assert run.fault


async def test_an_open_playbook_is_on_the_first_page_with_its_last_proof(journals: Path) -> None:
    config = MonitorConfig(bus=PROXIED, journal=str(journals))
    _, page = await answered("/", config)
    assert "remove mb3" in page
    assert "1 steps done, the last: drain mb3, no publisher is left" in page
    _, page = await answered("/journal", config)
    assert "abandoned" in page
