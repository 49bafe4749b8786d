"""Agents behind HAProxy: their checks, the gate, the keeper."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pika.frame
import pika.spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.inventory import Inventory
from lb import agents, keeper, render, runtime, state
from lb.errors import AgentRefused, BalancerUnreachable, NotReached
from lb.fleet import Fleet
from lb.hosts import LocalMachine
from lb.render import CHANNEL_MAX, gate_check_steps
from lb.runtime import ServerState
from lb.state import rows
from messagebus.admin.proof import TokenProof
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.topology import GATE
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


def test_agents_are_asked_for_their_reasons_side_by_side_and_those_of_other_brokers_are_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [node.name for node in rig.read.brokers]
    asked: list[str] = []
    together = threading.Barrier(len(names))

    def get(url: str, **_: object) -> httpx.Response:
        asked.append(url)
        together.wait(agents.AGENT_WITHIN_S)
        return rig.health

    monkeypatch.setattr(httpx, "get", get)
    assert agents.reasons(rig.read, [*names, "gone"]) == dict.fromkeys(names, "no AMQP")
    assert len(asked) == len(names)
    rig.health = httpx.Response(200, json={"verdict": "ready"})
    assert agents.reasons(rig.read, names) == {}
    assert agents.reasons(rig.read, []) == {}


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


def _methods(sent: bytes) -> list[tuple[int, object]]:
    """Return (channel, method) of every frame, by another implementation."""
    found = []
    while sent:
        consumed, frame = pika.frame.decode_frame(sent)
        assert isinstance(frame, pika.frame.Method)
        found.append((frame.channel_number, frame.method))
        sent = sent[consumed:]
    return found


def test_it_greets_first() -> None:
    assert gate_check_steps("probe", Secret("x"))[0].send == b"AMQP\x00\x00\x09\x01"


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_login_is_plain_and_asks_to_be_told_of_a_refusal(user: str, password: str) -> None:
    ((channel, start_ok),) = _methods(gate_check_steps(user, Secret(password))[1].send)
    assert isinstance(start_ok, pika.spec.Connection.StartOk)
    assert (channel, start_ok.mechanism, start_ok.locale) == (0, "PLAIN", "en_US")
    response = start_ok.response
    raw = response if isinstance(response, bytes) else response.encode()
    assert raw == f"\0{user}\0{password}".encode()
    assert start_ok.client_properties["capabilities"] == {"authentication_failure_close": True}


def test_only_the_login_is_secret() -> None:
    assert [step.secret for step in gate_check_steps("probe", Secret("x"))] == [
        False,
        True,
        False,
        False,
    ]


def test_the_gates_queue_is_declared_passively_in_one_send() -> None:
    tune, opened, channel, declare = _methods(gate_check_steps("probe", Secret("x"))[2].send)
    assert isinstance(tune[1], pika.spec.Connection.TuneOk)
    assert (tune[1].channel_max, tune[1].heartbeat) == (CHANNEL_MAX, 0) == (2047, 0)
    assert isinstance(opened[1], pika.spec.Connection.Open)
    assert opened[1].virtual_host == "/"
    assert isinstance(channel[1], pika.spec.Channel.Open)
    assert isinstance(declare[1], pika.spec.Queue.Declare)
    assert declare[0] == channel[0] == 1
    assert (declare[1].queue, declare[1].passive) == (GATE, True)


def test_it_says_goodbye() -> None:
    ((_, close),) = _methods(gate_check_steps("probe", Secret("x"))[3].send)
    assert isinstance(close, pika.spec.Connection.Close)
    assert close.reply_code == 200


GOOD = [
    (1, pika.spec.Connection.Tune(2047, 131072, 60), 0),
    (2, pika.spec.Queue.DeclareOk(GATE, 1, 0), 1),
    (3, pika.spec.Connection.CloseOk(), 0),
]


@pytest.mark.parametrize(("index", "answer", "channel"), GOOD)
def test_a_good_answer_is_expected_and_long_enough(
    index: int, answer: pika.amqp_object.Method, channel: int
) -> None:
    step = gate_check_steps("probe", Secret("x"))[index]
    before = b""
    if index == 2:
        before = pika.frame.Method(0, pika.spec.Connection.OpenOk()).marshal()
        before += pika.frame.Method(1, pika.spec.Channel.OpenOk()).marshal()
    received = before + pika.frame.Method(channel, answer).marshal()
    assert step.expect in received
    assert step.bytes_min == len(received)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(pika.spec.Queue.DeclareOk(GATE, 0, 0), id="the broker was started since"),
        pytest.param(pika.spec.Queue.DeclareOk(GATE, 0, 1), id="somebody reads it"),
        pytest.param(pika.spec.Channel.Close(404, f"NOT_FOUND - {GATE}", 50, 10), id="new broker"),
        pytest.param(pika.spec.Channel.Close(403, f"ACCESS_REFUSED {GATE}", 50, 10), id="no right"),
    ],
)
def test_a_shut_gate_is_told_by_length_without_waiting(answer: pika.amqp_object.Method) -> None:
    step = gate_check_steps("probe", Secret("x"))[2]
    received = pika.frame.Method(0, pika.spec.Connection.OpenOk()).marshal()
    received += pika.frame.Method(1, pika.spec.Channel.OpenOk()).marshal()
    received += pika.frame.Method(1, answer).marshal()
    assert step.expect not in received
    assert len(received) >= step.bytes_min


def test_the_password_is_in_no_repr() -> None:
    assert "sesame" not in repr(Secret("sesame"))
    assert "sesame" not in repr(
        [step for step in gate_check_steps("u", Secret("sesame")) if not step.secret]
    )


SAID = (
    state.HEAD
    + "3 mb_brokers 1 mb1 10.0.1.1 2 8 40 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - - 0\n"
    + "3 mb_brokers 2 mb2 10.0.1.2 2 4 100 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - - 0\n"
    + "4 mb_agents 1 mb1 10.0.1.1 2 0 1 1 2 15 3 3 6 22 0 0 - 8081 - 0 0 - - 0\n"
    + "\n"
)


def test_it_is_a_file_by_itself() -> None:
    """Its host has no other file of this kit, and no package."""
    tree = ast.parse(Path(keeper.__file__).read_text())
    named = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert named <= set(sys.stdlib_module_names)


def test_it_says_what_the_kit_says() -> None:
    assert (keeper.BACKEND, keeper.WEIGHT) == (render.BROKERS, render.WEIGHT)
    assert keeper.WEIGHT_MAX == runtime.WEIGHT_MAX
    assert (keeper.HEAD, keeper.COLUMNS) == (state.HEAD, state.COLUMNS)
    assert keeper.ORDERED_FLAGS == state.ORDERED_FLAGS


def test_what_is_saved_is_what_a_reload_of_the_kit_would_write() -> None:
    assert keeper.brokers_of(SAID) == state.warm(SAID, inventory().brokers)


def test_at_a_start_from_nothing_all_are_down_and_orders_stay() -> None:
    ours = rows(keeper.cold(SAID))
    assert [row.text.split()[5] for row in ours.values()] == ["0", "0"]
    assert {name: row.admin_state for name, row in ours.items()} == {"mb1": 8, "mb2": 0}
    kits = rows(state.cold(SAID, inventory().brokers))
    for name, row in ours.items():
        assert row.text.split()[9:15] == kits[name].text.split()[9:15]
    assert [row.text.split()[7:9] for row in ours.values()] == [["40", "100"], ["100", "100"]]
    assert keeper.cold(keeper.cold(SAID)) == keeper.cold(SAID)


def test_a_broker_that_the_file_does_not_tell_of_starts_as_down() -> None:
    """It is new, or lost with the end of a file that was cut off anywhere."""
    read = inventory(3)
    config = render.render(read)
    assert keeper.cold("", config) == state.cold("", read.brokers)
    for end in range(len(SAID)):
        ours = rows(keeper.cold(SAID[:end], config))
        assert list(ours) == ["mb1", "mb2", "mb3"]
        assert {row.text.split()[5] for row in ours.values()} == {"0"}
    assert rows(keeper.cold(SAID, config))["mb1"].admin_state == 8


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xfe\x00", b"\x00" * 4096, b"mb_brokers " * 40, b"9" * 5000, b"1 " * 30 + b"\n"],
)
@pytest.mark.parametrize("at", [0, 1, 500, 600, -20])
def test_a_damaged_file_keeps_nobody_from_starting_and_takes_no_broker_as_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes, at: int
) -> None:
    file, config = tmp_path / "state", tmp_path / "haproxy.cfg"
    raw = SAID.encode()
    file.write_bytes(raw[:at] + damage + raw[at:])
    read = inventory(3)
    kits = rows(state.cold(LocalMachine().read(file), read.brokers))
    config.write_text(render.render(read))
    said = [
        "--cold",
        "--file",
        str(file),
        "--config",
        str(config),
        "--lock",
        str(tmp_path / "lock"),
    ]
    monkeypatch.setattr(sys, "argv", ["keeper.py", *said])
    keeper.main()
    ours = rows(file.read_text())
    for found in (ours, kits):
        assert list(found) == ["mb1", "mb2", "mb3"]
        assert {row.text.split()[5] for row in found.values()} == {"0"}


def test_a_file_that_cannot_be_read_is_told_and_counts_as_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keeper.read(tmp_path / "none") == ""
    assert capsys.readouterr().err == ""
    assert keeper.read(tmp_path) == ""
    assert "not read" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "1\n", "rubbish\nof any kind\nmb_brokers\n"])
def test_what_is_no_state_stays_none(text: str) -> None:
    assert rows(keeper.cold(text)) == {}


def test_a_socket_that_is_not_there_is_told_and_the_last_file_stands(tmp_path: Path) -> None:
    file = tmp_path / "state"
    keeper.write(file, "old")
    assert "No such file" in keeper.save(tmp_path / "none.sock", file, None)
    assert keeper.read(file) == "old"
    assert file.stat().st_mode & 0o777 == 0o600


def test_it_does_not_write_while_another_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LOCK_WITHIN_S", 0)
    with keeper.locked(tmp_path / "lock"):
        assert "another process holds" in keeper.save(
            tmp_path / "none", tmp_path / "x", tmp_path / "lock"
        )


class AdminSocket:
    """HAProxy's admin socket, which gives the next of these answers to each question; the last stays."""

    def __init__(self, path: Path, *answers: bytes) -> None:
        self.path, self._answers = path, [*answers]
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                with client:
                    assert client.recv(100) == b"show servers state\n"
                    with contextlib.suppress(BrokenPipeError):
                        client.sendall(
                            self._answers.pop(0) if self._answers[1:] else self._answers[0]
                        )

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """The keeper's command, over an admin socket that gives these answers."""
    sockets: list[AdminSocket] = []

    def run(*answers: bytes, words: Sequence[str] = ()) -> object:
        admin = tmp_path / f"{len(sockets)}.sock"
        sockets.append(AdminSocket(admin, *answers))
        said = ["--socket", str(admin), "--file", str(tmp_path / "state"), *words]
        monkeypatch.setattr(sys, "argv", ["keeper.py", *said])
        with pytest.raises(SystemExit) as ended:
            keeper.main()
        return ended.value.code

    yield run
    for each in sockets:
        each.close()


def test_what_a_process_says_is_saved_and_rubbish_is_not(
    keeping: Callable[..., object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "state"
    assert keeping(SAID.encode()) == 0
    assert file.read_text() == keeper.brokers_of(SAID)
    assert keeping(b"\xff\n") == 1
    assert "no format that is known" in capsys.readouterr().err
    monkeypatch.setattr(keeper, "ANSWER_BYTES_MAX", 10)
    assert keeping(SAID.encode()) == 1
    assert "an answer above 10 bytes" in capsys.readouterr().err
    assert file.read_text() == keeper.brokers_of(SAID)


def test_it_saves_for_ever_and_tells_a_fault_once(
    keeping: Callable[..., object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 5:
            raise SystemExit(9)

    monkeypatch.setattr(time, "sleep", sleep)
    answers = (SAID.encode(), b"", b"", SAID.encode(), b"")
    assert keeping(*answers, words=["--every", "2"]) == 9
    assert slept == [2.0] * 5
    assert capsys.readouterr().err.count("not saved: ") == 2
    assert (tmp_path / "state").read_text() == keeper.brokers_of(SAID)


@pytest.mark.parametrize("every", ["nan", "0", "-1", "1e9", "often"])
def test_it_saves_in_times_that_are_times(every: str, keeping: Callable[..., object]) -> None:
    assert keeping(b"", words=["--every", every]) == 2


def test_without_a_socket_it_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["keeper.py", "--file", str(tmp_path / "state")])
    with pytest.raises(SystemExit):
        keeper.main()
    assert "--socket or --cold" in capsys.readouterr().err
