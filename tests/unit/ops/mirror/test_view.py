from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.errors import CannotTell, NoAnswer
from ops.mirror import view as mirrors
from ops.mirror.state import Status
from ops.mirror.view import MirrorView, amqp_answers
from tests.support.mirrors import FakeHosts, mirrored_inventory

HOSTS = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(mirrored_inventory(HOSTS, address="127.0.0.1"))
    return path


def view(file: Path, states: dict[str, str], **answers: str | None) -> MirrorView:
    return MirrorView(file, "mb1", FakeHosts(states, answers).connect)


def test_both_hosts_are_asked_and_one_that_is_silent_is_told_as_such(file: Path) -> None:
    sides = view(file, {"db1": "", "db2": "07 B"}).sides()
    assert isinstance(sides["db1"], NoAnswer)
    assert "db1" in str(sides["db1"])
    assert isinstance(sides["db2"], Status)
    assert list(sides) == ["db1", "db2"]


def test_who_was_silent_a_moment_ago_is_not_asked_again_and_later_is(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = FakeHosts({"db1": "", "db2": "07 B"})
    seen = MirrorView(file, "mb1", hosts.connect)
    seen.sides()
    asked = len([host for host, _ in hosts.ran if host == "db1"])
    hosts.states["db1"] = "07 A"
    assert isinstance(seen.sides()["db1"], NoAnswer)
    assert len([host for host, _ in hosts.ran if host == "db1"]) == asked
    monkeypatch.setattr(mirrors, "SILENT_FOR_S", 0.0)
    assert isinstance(seen.sides()["db1"], Status)


@pytest.mark.parametrize("state", ["00 A", "01 A", "20 B"])
def test_a_host_without_the_mirror_answers_that_it_is_down(file: Path, state: str) -> None:
    seen = view(file, {"db1": state, "db2": ""})
    assert not seen.status(seen.hosts[0]).is_up


EVENTS, GENERATIONS = "drbdsetup events2 --now --statistics mb1", "drbdadm get-gi mb1"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (EVENTS, "! sudo: a password is required"),
        (EVENTS, "! sudo: drbdsetup: command not found"),
        (EVENTS, "! "),
        (EVENTS, ""),
        (EVENTS, "exists resource name:r0 role:Secondary suspended:no\n"),
        (GENERATIONS, "! sudo: a password is required"),
        (GENERATIONS, "! no more processes"),
    ],
)
def test_a_host_that_refuses_or_breaks_off_is_not_one_without_the_mirror(
    file: Path, command: str, answer: str
) -> None:
    side = view(file, {"db1": "07 A", "db2": ""}, **{command: answer}).sides()["db1"]
    assert isinstance(side, CannotTell)


def test_a_refused_sudo_is_no_answer_to_whether_a_disk_is_mounted(file: Path) -> None:
    seen = view(file, {"db1": "sudo", "db2": ""})
    with pytest.raises(CannotTell, match="a password is required"):
        seen.succeeds(seen.hosts[0], ("findmnt", "/x"))


@pytest.mark.parametrize("state", ["15 B", "16 A"])
def test_a_disk_that_cannot_be_read_leaves_what_the_kernel_says(file: Path, state: str) -> None:
    seen = view(file, {"db1": state, "db2": ""})
    side = seen.status(seen.hosts[0])
    assert (side.disk, side.generations) == ("Diskless", None)


def test_a_split_brain_is_seen_when_both_answer_and_not_guessed_at_otherwise(file: Path) -> None:
    assert view(file, {"db1": "12 A", "db2": "12 B"}).is_split()
    assert not view(file, {"db1": "12 A", "db2": ""}).is_split()


def test_what_looks_split_in_one_look_alone_is_not(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = view(file, {"db1": "", "db2": ""})
    looks = iter([True, False])
    monkeypatch.setattr(mirrors, "is_split", lambda _sides: next(looks))
    assert not seen.is_split()


def test_a_role_holds_only_while_writes_are_not_frozen(file: Path) -> None:
    seen = view(file, {"db1": "23 A", "db2": "06 A"})
    frozen, well = seen.hosts
    assert "FROZEN" in seen.has_role(frozen, "Primary")()
    assert seen.has_role(well, "Primary")() == ""
    assert seen.has_role(well, "Secondary")().startswith("Connected  Primary")


def test_whole_is_both_copies(file: Path) -> None:
    seen = view(file, {"db1": "06 A", "db2": "04 B"})
    assert seen.is_whole(seen.hosts[0])() == ""
    assert "SyncTarget" in seen.is_whole(seen.hosts[1])()


def test_a_command_that_fails_is_no_and_one_that_cannot_be_run_is_no_answer(file: Path) -> None:
    seen = MirrorView(
        file, "mb1", FakeHosts({"db1": "06 A", "db2": ""}, {"test -e /x": None}).connect
    )
    here, silent = seen.hosts
    assert not seen.succeeds(here, ("test", "-e", "/x"))
    with pytest.raises(NoAnswer):
        seen.succeeds(silent, ("test", "-e", "/x"))
    with pytest.raises(NoAnswer):
        seen.output_of(here, ("test", "-e", "/x"))


@pytest.fixture
def port() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_broker_answers_when_it_speaks_amqp(file: Path, port: socket.socket) -> None:
    number = port.getsockname()[1]
    file.write_text(file.read_text().replace("127.0.0.1:5672", f"127.0.0.1:{number}"))
    check = amqp_answers(MirrorView(file, "mb1"))
    asked: list[bytes] = []

    def answer(said: bytes) -> str:
        def serve() -> None:
            with port.accept()[0] as client:
                asked.append(client.recv(8))
                client.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        found = check()
        thread.join()
        return found

    assert answer(b"\x01\x00\x00") == ""
    assert "does not speak AMQP" in answer(b"HTTP/1.1")
    assert asked == [b"AMQP\x00\x00\x09\x01"] * 2
