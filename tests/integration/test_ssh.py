"""inventory.shell over real SSH: commands, files, sockets, and keys that are not the ones expected."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from inventory import shell
from inventory.errors import CommandFailed
from ops.errors import HostKeyWrong, LockHeld
from ops.provision.hosts import Root
from ops.run.command import locked
from tests.support.eventually import eventually
from tests.support.mirrors import mirrored_inventory
from tests.support.sshd import Sshd, ssh_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with ssh_server(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(autouse=True)
def settings(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shell.ENV_SSH_CONFIG, str(server.config))


def test_words_reach_the_command_as_they_are(server: Sshd) -> None:
    argv = ["printf", "%s|", "a b", "$HOME", "*", "it's"]
    assert shell.run_over_ssh(server.address, argv, timeout_s=10) == "a b|$HOME|*|it's|"


def test_a_connection_is_kept_and_made_anew_where_it_was_ended(server: Sshd) -> None:
    def run(*argv: str) -> str:
        return shell.run_over_ssh(server.address, argv, timeout_s=10)

    with shell.connections_kept():
        first = run("printenv", "SSH_CONNECTION")
        assert run("printenv", "SSH_CONNECTION") == first
        with suppress(CommandFailed):
            run("sh", "-c", "kill $PPID")
        assert run("printenv", "SSH_CONNECTION") != first


def test_what_is_read_by_a_command_stands_in_no_argument(server: Sshd) -> None:
    argv = ["sh", "-c", "tr '\\0' ' ' < /proc/$$/cmdline; cat"]
    said = shell.run_over_ssh(server.address, argv, timeout_s=10, stdin="sesame\n")
    assert said.endswith("cat sesame\n")
    assert said.count("sesame") == 1


def test_a_failure_says_where_and_what(server: Sshd) -> None:
    with pytest.raises(CommandFailed, match=r"sh on .*: exit code 3: bad") as caught:
        shell.run_over_ssh(server.address, ["sh", "-c", "echo bad >&2; exit 3"], timeout_s=10)
    assert caught.value.exit_code == 3


def test_a_command_that_takes_too_long_is_given_up(server: Sshd) -> None:
    with pytest.raises(CommandFailed, match=r"sleep on .*: did not end in time"):
        shell.run_over_ssh(server.address, ["sleep", "20"], timeout_s=0.5)


def test_a_command_that_reads_nothing_is_no_failure(server: Sshd) -> None:
    assert shell.run_over_ssh(server.address, ["true"], timeout_s=10, stdin="x" * 10**6) == ""


def test_a_large_file_is_written_whole(server: Sshd, tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))
    with shell.remote(server.address) as there:
        there.write(tmp_path / "large", text)
    assert (tmp_path / "large").read_text() == text


def test_a_file_is_replaced_whole(server: Sshd, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "list.txt"
    with shell.remote(server.address) as there:
        for text in ("one\n", "two and\nthree\n"):
            there.write(path, text, mode=0o600)
            assert path.read_text() == text
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_written_leaves_the_old_file(server: Sshd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with shell.remote(server.address) as there, pytest.raises(CommandFailed, match="mkdir"):
        there.write(tmp_path / "file" / "list.txt", "x")


def test_a_socket_there_is_one_here_and_a_lock_is_held_meanwhile(
    server: Sshd, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        threading.Thread(target=_echo_once, args=(listener,), daemon=True).start()
        with (
            shell.forwarded(server.address, tmp_path / "s", lock=lock) as here,
            socket.socket(socket.AF_UNIX) as client,
        ):
            client.settimeout(10)
            client.connect(str(here))
            client.sendall(b"anybody?")
            assert client.recv(100) == b"anybody?"
            with pytest.raises(CommandFailed):
                shell.run(["flock", "-n", str(lock), "true"], timeout_s=10)
        assert not here.exists()
    shell.run(["flock", "-w", "10", str(lock), "true"], timeout_s=20)


def test_a_lock_that_another_has_is_told(server: Sshd, tmp_path: Path) -> None:
    lock, socket_ = tmp_path / "lock", tmp_path / "s"
    with (
        shell.forwarded(server.address, socket_, lock=lock),
        pytest.raises(CommandFailed, match=r"flock on .*: exit code 1"),
        shell.forwarded(server.address, socket_, lock=lock, within_s=0.1),
    ):
        raise AssertionError("two hold one lock")


def test_operators_with_an_inventory_each_are_kept_apart_by_the_balancers_host(
    server: Sshd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have two checkouts. A killed one lets go; a host that is away is named and stops nobody."""
    ours, theirs = (tmp_path / name for name in ("ours", "theirs"))
    for folder in (ours, theirs):
        folder.mkdir()
        write_inventory(folder, server.address, tmp_path)
    holds = [sys.executable, "-c", HOLD, str(ours)]
    with subprocess.Popen(holds, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(LockHeld, match=r"pid \d+, 'remove mb1' is changing this cluster since"),
            locked(theirs / "inventory.toml", "add mb4"),
        ):
            raise AssertionError("two hold one lock")
        other.kill()
    eventually(lambda: is_free(theirs / "inventory.toml"), within_s=60)
    assert capsys.readouterr().err == ""
    write_inventory(theirs, "root@127.0.0.1:1", tmp_path)
    with locked(theirs / "inventory.toml", "add mb4"):
        assert "note: no lock on balancer1" in capsys.readouterr().err


HOLD = """
import pathlib, sys, time
from ops.run.command import locked
with locked(pathlib.Path(sys.argv[1]) / "inventory.toml", "remove mb1"):
    print("held", flush=True)
    time.sleep(600)
"""


def is_free(inventory: Path) -> bool:
    try:
        with locked(inventory, "add mb4"):
            return True
    except LockHeld:
        return False


def write_inventory(folder: Path, ssh: str, far: Path) -> None:
    """Write an inventory with one balancer, on another host, whose files are in the folder `far` there."""
    hosts = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}
    text = mirrored_inventory(hosts, address="10.0.0.9")
    text = text.replace("[balancer]", '[balancer]\nhost = "balancer1"', 1)
    for name in ("haproxy.cfg", "haproxy.sock", "haproxy.state", "haproxy.pid"):
        text = text.replace(f'"{name}"', f'"{far / name}"')
    host = f'\n[[hosts]]\nname = "balancer1"\nssh = "{ssh}"\n'
    (folder / "inventory.toml").write_text(text + host)


def test_nobody_answers(server: Sshd, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="SSH: "):
        shell.run_over_ssh("root@127.0.0.1:1", ["true"], timeout_s=10)
    with (
        pytest.raises(CommandFailed, match=r"cat on .*: exit code 255: .*refused"),
        shell.forwarded("root@127.0.0.1:1", tmp_path / "s"),
    ):
        raise AssertionError("nobody is there")


def test_a_host_with_a_strange_key_is_not_talked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ssh_server(tmp_path / "sshd") as strange:
        monkeypatch.setenv(shell.ENV_SSH_CONFIG, str(strange.config))
        strange.change_key()
        with pytest.raises(CommandFailed, match=r"SSH: .*[Hh]ost key"):
            shell.run_over_ssh(strange.address, ["true"], timeout_s=10)
        with (
            shell.remote(strange.address) as far,
            pytest.raises(HostKeyWrong, match="not the known"),
        ):
            Root(far, host="db1", sudo=False).run(("true",))
        (tmp_path / "sshd" / "known_hosts").write_text("")
        with pytest.raises(CommandFailed, match=r"SSH: .*not found in known_hosts"):
            shell.run_over_ssh(strange.address, ["true"], timeout_s=10)
        with (
            shell.remote(strange.address) as far,
            pytest.raises(HostKeyWrong, match="is not known"),
        ):
            Root(far, host="db1", sudo=False).run(("true",))


def _echo_once(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(connection.recv(100))
