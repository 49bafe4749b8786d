"""The state of mirrors as it is read and shown, and the commands."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from inventory import shell
from ops.__main__ import main
from ops.errors import CannotTell, NoAnswer
from ops.mirror import view as mirrors
from ops.mirror.state import Status
from ops.mirror.view import MirrorView, amqp_answers
from tests.support.mirrors import FakeHosts, mirrored_inventory

HOSTS = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}
SIGNATURES = "wipefs --no-act --noheadings --output TYPE /dev/vdb"
NODE_NAME = "sed -n s/^NODENAME=//p /etc/rabbitmq/rabbitmq-env.conf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(mirrored_inventory(HOSTS, address="10.0.0.9"))
    return path


class Asked:
    """Commands that ask `FakeHosts`."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file, self._monkeypatch = file, monkeypatch

    def __call__(
        self, one: str, two: str, words: str, answers: dict[str, str | None] | None = None
    ) -> int:
        hosts = FakeHosts({"db1": one, "db2": two}, answers)
        self._monkeypatch.setattr(shell, "remote", hosts.connect)
        return main(["drbd", *words.split(), "--inventory", str(self._file)])


@pytest.fixture
def drbd(file: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(file, monkeypatch)


@pytest.mark.parametrize(
    ("one", "two", "code", "told"),
    [
        ("06 A", "06 B", 0, "Connected  Primary/Secondary"),
        ("07 A", "07 B", 7, "single copy"),
        ("12 A", "12 B", 7, "SPLIT BRAIN: python -m ops drbd resolve mb1"),
        ("26 A", "", 7, "db2"),
    ],
)
def test_status_says_whether_all_is_well(
    drbd: Asked, one: str, two: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drbd(one, two, "status") == code
    assert told in capsys.readouterr().out


def answers(holds: str = "", name: str = "db1") -> dict[str, str | None]:
    return {SIGNATURES: holds, "uname -n": name}


class Named(FakeHosts):
    """Hosts that know their names."""

    def run(self, host: str, argv: Sequence[str]) -> str:
        return host if argv[0] == "uname" else super().run(host, argv)


def test_a_disk_that_holds_something_is_named_and_nothing_is_done(
    drbd: Asked, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = Named(
        {"db1": "01 A", "db2": "01 A"}, {SIGNATURES: "ext4\n", NODE_NAME: "mb1@localhost"}
    )
    monkeypatch.setattr(shell, "remote", hosts.connect)
    words = ["drbd", "create", "mb1", "--inventory", str(file), "--yes", "--dry-run"]
    assert main(words) == 1
    error = capsys.readouterr().err
    phrases = [f"destroy ext4 on {name}:/dev/vdb" for name in ("db1", "db2")]
    assert all(f'--overwrite "{phrase}"' in error for phrase in phrases)

    assert main([*words, "--overwrite", phrases[0]]) == 1
    assert phrases[0] not in capsys.readouterr().err
    assert main([*words, "--overwrite", phrases[0], "--overwrite", phrases[1]]) == 0
    assert capsys.readouterr().out.count("wipefs --all") == 2
    assert main([*words, "--overwrite", "destroy everything"]) == 1
    assert {typed.split()[0] for _, typed in hosts.ran} <= {
        *("uname", "sed", "wipefs", "drbdsetup", "drbdadm", "systemctl"),
    }
    assert not any("--all" in typed for _, typed in hosts.ran)


def test_a_host_of_another_name_is_refused_because_drbd_would(
    drbd: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drbd("01 A", "01 A", "create mb1 --dry-run", answers(name="localhost")) == 1
    assert "db1 calls itself 'localhost'" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["", "rabbit\n", None])
def test_two_hosts_on_which_rabbitmq_would_be_two_nodes_are_refused(
    file: Path,
    named: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hosts = Named({"db1": "01 A", "db2": "01 A"}, {SIGNATURES: "", NODE_NAME: named})
    monkeypatch.setattr(shell, "remote", hosts.connect)
    assert main(["drbd", "create", "mb1", "--inventory", str(file), "--dry-run"]) == 1
    refused = capsys.readouterr().err
    assert "RabbitMQ would be node rabbit@db1 on db1 and rabbit@db2 on db2" in refused


@pytest.mark.parametrize(
    ("one", "two", "words", "refusal"),
    [
        ("06 A", "06 B", "resolve mb1 --victim db2", "no split brain of mb1"),
        ("12 A", "12 B", "resolve mb1 --victim db9", "no host 'db9'"),
        ("06 A", "06 B", "promote mb1 db2", "db1 is primary; demote it first"),
        ("06 A", "06 B", "disconnect mb1 db1", "db1 is primary; disconnect its partner"),
        ("07 A", "07 B", "verify mb1", "only a whole mirror is verified"),
        ("06 A", "06 B", "disk mb1 db2", "db2 has its disk: Connected"),
        ("23 A", "23 B", "thaw mb1 --dead db2", "db2 is not dead: it answers"),
        ("06 A", "06 B", "rate mb1 fast", "'fast' is no rate"),
        ("06 A", "06 B", "demote mb7 db1", "no mirror of 'mb7'"),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(
    drbd: Asked,
    one: str,
    two: str,
    words: str,
    refusal: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert drbd(one, two, f"{words} --yes") in (1, 2)
    assert refusal in capsys.readouterr().err.splitlines()[-1]


def test_what_each_side_of_a_split_brain_has_is_shown_before_one_is_given_up(
    drbd: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    told: dict[str, str | None] = {
        "systemctl is-active rabbitmq-server": "",
        "systemctl cat messagebus-agent": None,
        "find /var/lib/rabbitmq -type f -printf %TY-%Tm-%Td %TH:%TM\\n": "2026-01-02 03:04",
        "mountpoint -q /var/lib/rabbitmq": "",
    }
    assert drbd("12 A", "12 B", "resolve mb1 --victim db2 --dry-run", told) == 0
    shown = capsys.readouterr().out
    for host in ("db1", "db2"):
        assert f"{host}: StandAlone  Primary/Unknown" in shown
    assert "its broker runs; newest file of 2026-01-02 03:04" in shown
    assert "ssh db2 'drbdadm connect --discard-my-data mb1'" in shown


def test_a_new_disk_gets_metadata_and_everything_is_copied_to_it(
    drbd: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drbd("15 A", "15 B", "disk mb1 db2 --dry-run", answers()) == 0
    assert "ssh db2 'drbdadm create-md --force mb1'" in capsys.readouterr().out
    assert drbd("15 A", "15 B", "disk mb1 db2 --dry-run", answers("xfs")) == 1
    assert '--overwrite "destroy xfs on db2:/dev/vdb"' in capsys.readouterr().err


def test_frozen_writes_go_on_by_an_operators_word(
    drbd: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drbd("24 A", "", "thaw mb1 --dead db2 --dry-run") == 0
    shown = capsys.readouterr().out
    assert "install -D -m 600 /dev/null /run/messagebus/dead/mb1.db2" in shown
    assert "drbdadm resume-io mb1" in shown


def test_who_went_on_alone_says_so_and_its_partner_goes_on_without_it_by_name_only(
    drbd: Asked, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """db2 went on; db1, frozen since before, knows nothing of that, and db2 cannot be asked any more."""
    assert drbd("", "26 A", "alone mb1 db2") == 0
    assert drbd("24 A", "", "status") == 7
    assert "db2 went on alone on 20" in capsys.readouterr().out
    assert drbd("24 A", "", "thaw mb1 --dead db2 --dry-run") == 1
    assert "db2 went on alone" in capsys.readouterr().err
    assert drbd("24 A", "", "thaw mb1 --dead db2 --give-up db2 --dry-run") == 0
    assert drbd("07 B", "", "promote mb1 db1 --dead db2 --dry-run") == 1
    assert "db1 is not promoted: db2 went on alone" in capsys.readouterr().err
    assert drbd("07 B", "", "promote mb1 db1 --dead db2 --give-up db2 --dry-run") == 0
    capsys.readouterr()
    assert drbd("06 A", "06 B", "status") == 0  # whole: it is over
    assert "alone" not in capsys.readouterr().out
    assert drbd("07 B", "", "promote mb1 db1 --dead db2 --dry-run") == 0


def test_the_disk_of_another_mirror_holds_something(
    drbd: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only DRBD's own disks are ours, and disks made a moment ago that never had data."""
    told: dict[str, str | None] = {
        **answers("drbd"),
        "drbdsetup events2 --now --statistics mb1": "exists -",
        "drbdadm get-gi mb1": "3D4DD4F3631A1267:"
        + "0" * 16
        + ":"
        + "0" * 16
        + ":"
        + "0" * 16
        + ":1:1:0:1:0:0:0",
    }
    assert drbd("01 A", "01 A", "disk mb1 db2 --dry-run", told) == 1
    assert '--overwrite "destroy drbd on db2:/dev/vdb"' in capsys.readouterr().err
    told["drbdadm get-gi mb1"] = "0000000000000004" + ":0000000000000000" * 3 + ":0:0:0:0:0:0:0"
    assert drbd("01 A", "01 A", "disk mb1 db2 --dry-run", told) == 0


@pytest.fixture
def loopback_file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(mirrored_inventory(HOSTS, address="127.0.0.1"))
    return path


def view(loopback_file: Path, states: dict[str, str], **answers: str | None) -> MirrorView:
    return MirrorView(loopback_file, "mb1", FakeHosts(states, answers).connect)


def test_both_hosts_are_asked_and_one_that_is_silent_is_told_as_such(loopback_file: Path) -> None:
    sides = view(loopback_file, {"db1": "", "db2": "07 B"}).sides()
    assert isinstance(sides["db1"], NoAnswer)
    assert "db1" in str(sides["db1"])
    assert isinstance(sides["db2"], Status)
    assert list(sides) == ["db1", "db2"]


def test_who_was_silent_a_moment_ago_is_not_asked_again_and_later_is(
    loopback_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = FakeHosts({"db1": "", "db2": "07 B"})
    seen = MirrorView(loopback_file, "mb1", hosts.connect)
    seen.sides()
    asked = len([host for host, _ in hosts.ran if host == "db1"])
    hosts.states["db1"] = "07 A"
    assert isinstance(seen.sides()["db1"], NoAnswer)
    assert len([host for host, _ in hosts.ran if host == "db1"]) == asked
    monkeypatch.setattr(mirrors, "SILENT_FOR_S", 0.0)
    assert isinstance(seen.sides()["db1"], Status)


@pytest.mark.parametrize("state", ["00 A", "01 A", "20 B"])
def test_a_host_without_the_mirror_answers_that_it_is_down(loopback_file: Path, state: str) -> None:
    seen = view(loopback_file, {"db1": state, "db2": ""})
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
    loopback_file: Path, command: str, answer: str
) -> None:
    side = view(loopback_file, {"db1": "07 A", "db2": ""}, **{command: answer}).sides()["db1"]
    assert isinstance(side, CannotTell)


def test_a_refused_sudo_is_no_answer_to_whether_a_disk_is_mounted(loopback_file: Path) -> None:
    seen = view(loopback_file, {"db1": "sudo", "db2": ""})
    with pytest.raises(CannotTell, match="a password is required"):
        seen.succeeds(seen.hosts[0], ("findmnt", "/x"))


@pytest.mark.parametrize("state", ["15 B", "16 A"])
def test_a_disk_that_cannot_be_read_leaves_what_the_kernel_says(
    loopback_file: Path, state: str
) -> None:
    seen = view(loopback_file, {"db1": state, "db2": ""})
    side = seen.status(seen.hosts[0])
    assert (side.disk, side.generations) == ("Diskless", None)


def test_a_split_brain_is_seen_when_both_answer_and_not_guessed_at_otherwise(
    loopback_file: Path,
) -> None:
    assert view(loopback_file, {"db1": "12 A", "db2": "12 B"}).is_split()
    assert not view(loopback_file, {"db1": "12 A", "db2": ""}).is_split()


def test_what_looks_split_in_one_look_alone_is_not(
    loopback_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = view(loopback_file, {"db1": "", "db2": ""})
    looks = iter([True, False])
    monkeypatch.setattr(mirrors, "is_split", lambda _sides: next(looks))
    assert not seen.is_split()


def test_a_role_holds_only_while_writes_are_not_frozen(loopback_file: Path) -> None:
    seen = view(loopback_file, {"db1": "23 A", "db2": "06 A"})
    frozen, well = seen.hosts
    assert "FROZEN" in seen.has_role(frozen, "Primary")()
    assert seen.has_role(well, "Primary")() == ""
    assert seen.has_role(well, "Secondary")().startswith("Connected  Primary")


def test_whole_is_both_copies(loopback_file: Path) -> None:
    seen = view(loopback_file, {"db1": "06 A", "db2": "04 B"})
    assert seen.is_whole(seen.hosts[0])() == ""
    assert "SyncTarget" in seen.is_whole(seen.hosts[1])()


def test_a_command_that_fails_is_no_and_one_that_cannot_be_run_is_no_answer(
    loopback_file: Path,
) -> None:
    seen = MirrorView(
        loopback_file, "mb1", FakeHosts({"db1": "06 A", "db2": ""}, {"test -e /x": None}).connect
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


def test_a_broker_answers_when_it_speaks_amqp(loopback_file: Path, port: socket.socket) -> None:
    number = port.getsockname()[1]
    loopback_file.write_text(
        loopback_file.read_text().replace("127.0.0.1:5672", f"127.0.0.1:{number}")
    )
    check = amqp_answers(MirrorView(loopback_file, "mb1"))
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
