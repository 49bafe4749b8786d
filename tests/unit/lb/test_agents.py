from __future__ import annotations

import dataclasses
from pathlib import Path

import httpx
import pytest

from inventory.inventory import Inventory
from lb import agents, runtime
from lb.errors import AgentRefused, BalancerUnreachable, NotReached
from lb.fleet import Fleet
from lb.runtime import ServerState
from messagebus.admin.proof import TokenProof
from messagebus.errors import ConfigError
from tests.support.balancer import UP, inventory

DRAINED = dataclasses.replace(UP, verdict="drain", drained=True)
DOWN = dataclasses.replace(UP, verdict="down")
DOWN_DRAINED = dataclasses.replace(DOWN, drained=True)
SILENT = None


class Rig:
    """One agent that answers, and one HAProxy that shows one state after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, read: Inventory) -> None:
        self.read = read
        self.asked: list[httpx.Request] = []
        self.answer = httpx.Response(200, json={})
        self.shows: list[ServerState | None] = [UP]
        self.health = httpx.Response(503, json={"verdict": "down", "reason": "no\nAMQP"})
        monkeypatch.setattr(httpx, "post", self._post)
        monkeypatch.setattr(httpx, "get", lambda _url, **_: self.health)
        monkeypatch.setattr(runtime, "servers", self._servers)
        monkeypatch.setattr(agents, "POLL_S", 0)

    def _post(self, url: str, *, json: object, auth: TokenProof, **_: object) -> object:
        assert isinstance(auth, TokenProof)
        self.asked.append(httpx.Request("POST", url, json=json))
        if self.answer.status_code == 599:
            raise httpx.ConnectError("Connection refused")
        return self.answer

    def _servers(self, _socket: Path) -> dict[str, ServerState]:
        now = self.shows.pop(0) if len(self.shows) > 1 else self.shows[0]
        if now is None:
            raise BalancerUnreachable("gone")
        return {"mb1": now}


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rig:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "token").write_text("sesame\n")
    return Rig(monkeypatch, inventory(base=tmp_path))


def test_a_drain_is_told_to_the_agent_and_seen_in_haproxy(rig: Rig) -> None:
    rig.shows = [UP, SILENT, DRAINED]
    assert agents.drain(rig.read, "mb1") == {"haproxy": DRAINED}
    (request,) = rig.asked
    assert str(request.url) == "http://10.0.1.1:8081/drain"
    assert request.content == b'{"draining":true}'


def test_a_broker_that_is_down_can_be_drained(rig: Rig) -> None:
    rig.shows = [DOWN, DOWN_DRAINED]
    assert agents.drain(rig.read, "mb1") == {"haproxy": DOWN_DRAINED}


def test_ready_is_told_and_seen(rig: Rig) -> None:
    rig.shows = [DRAINED, UP]
    assert agents.ready(rig.read, "mb1") == {"haproxy": UP}
    assert rig.asked[0].content == b'{"draining":false}'


def test_a_broker_that_stays_down_is_not_ready(rig: Rig) -> None:
    rig.shows = [DOWN]
    told = r"not seen as ready after 0 s: HAProxy says down .*; the agent's reason: no AMQP$"
    with pytest.raises(NotReached, match=told):
        agents.ready(rig.read, "mb1", within_s=0)


@pytest.mark.parametrize("health", ["<html>", "[]", "{}", "null"])
def test_an_agent_without_a_reason_is_left_out(rig: Rig, health: str) -> None:
    rig.shows, rig.health = [DOWN], httpx.Response(503, text=health)
    with pytest.raises(NotReached, match=r"says ready\)$"):
        agents.ready(rig.read, "mb1", within_s=0)


def test_a_silent_balancer_is_told(rig: Rig) -> None:
    rig.shows = [SILENT]
    with pytest.raises(NotReached, match="HAProxy does not show it"):
        agents.drain(rig.read, "mb1", within_s=0)


def test_a_dead_agent_is_told_with_what_can_be_done(rig: Rig) -> None:
    rig.answer = httpx.Response(599)
    with pytest.raises(
        AgentRefused, match=r"agent of mb1 does not answer .* see `lb drain --by-hand`"
    ):
        agents.drain(rig.read, "mb1")


def test_a_wrong_token_is_told_and_not_shown(rig: Rig) -> None:
    rig.answer = httpx.Response(401, text="who are you?\n")
    with pytest.raises(AgentRefused, match=r"says 401: who are you\?$") as raised:
        agents.drain(rig.read, "mb1")
    assert "sesame" not in str(raised.value)


def test_an_unknown_broker_is_wrong_use(rig: Rig) -> None:
    with pytest.raises(ConfigError):
        agents.drain(rig.read, "mb9")
    assert rig.asked == []


def test_a_missing_token_is_told(rig: Rig) -> None:
    rig.read.token_file.unlink()
    with pytest.raises(ConfigError, match="token_file"):
        agents.drain(rig.read, "mb1")


def test_every_balancer_must_show_it(rig: Rig) -> None:
    two = Fleet({"lb1": Path("one"), "lb2": Path("two")})
    rig.shows = [UP, DRAINED, DRAINED, DRAINED]
    assert agents.drain(rig.read, "mb1", fleet=two) == {"lb1": DRAINED, "lb2": DRAINED}
    rig.shows = [DRAINED, UP]
    with pytest.raises(NotReached, match=r"after 0 s: lb2: HAProxy says up \("):
        agents.drain(rig.read, "mb1", within_s=0, fleet=two)


def test_a_balancer_that_is_away_is_told_by_name(rig: Rig) -> None:
    rig.shows = [DRAINED]
    half = Fleet({"lb1": Path("one")}, unreachable={"lb2": "SSH: no route"})
    with pytest.raises(NotReached, match=r"after 0 s: lb2: SSH: no route$"):
        agents.drain(rig.read, "mb1", within_s=0, fleet=half)
