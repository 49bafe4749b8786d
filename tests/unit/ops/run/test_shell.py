from __future__ import annotations

import io
from pathlib import Path

import pytest
from paramiko.ssh_exception import SSHException

from ops.errors import CommandFailed
from ops.run import shell


def test_words_reach_the_command_as_they_are() -> None:
    assert shell.run(["printf", "%s|", "a b", "$HOME", "*"], timeout_s=10) == "a b|$HOME|*|"


def test_a_command_runs_in_the_folder_it_is_given(tmp_path: Path) -> None:
    assert shell.run(["pwd"], timeout_s=10, cwd=tmp_path).strip() == str(tmp_path)


def test_a_failure_keeps_the_whole_output() -> None:
    script = "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; echo bad >&2; exit 3"
    with pytest.raises(CommandFailed, match=r"sh: exit code 3: .*line 499") as caught:
        shell.run(["sh", "-c", script], timeout_s=10)
    assert caught.value.exit_code == 3
    assert caught.value.output.count("line") == 500
    assert "bad" in caught.value.output


def test_a_missing_program_is_told() -> None:
    with pytest.raises(CommandFailed, match="no such program"):
        shell.run(["/no/such/program"], timeout_s=10)


def test_a_command_that_takes_too_long_is_ended() -> None:
    with pytest.raises(CommandFailed, match="did not end in time"):
        shell.run(["sleep", "60"], timeout_s=0.1)


class Channel:
    """Channel that records its command, and ends well."""

    def __init__(self) -> None:
        self.line = ""

    def exec_command(self, line: str) -> None:
        self.line = line

    def sendall(self, stdin: bytes) -> None:
        pass

    def shutdown_write(self) -> None:
        pass

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.line.encode())

    def makefile_stderr(self, mode: str) -> io.BytesIO:
        return io.BytesIO()

    def recv_exit_status(self) -> int:
        return 0

    def close(self) -> None:
        pass


class Connection:
    """Connection like Fabric's. is_silent: its host was switched off without a word."""

    def __init__(self) -> None:
        self.dialled = 0
        self.is_connected = self.is_silent = False
        self.transport = self
        self.sock = None

    def open(self) -> None:
        self.dialled += 1
        self.is_connected, self.is_silent = True, False

    def close(self) -> None:
        self.is_connected = False

    def set_keepalive(self, interval: int) -> None:
        assert interval > 0

    def open_session(self, timeout: float) -> Channel:
        assert timeout > 0
        if self.is_silent:
            raise SSHException("Timeout opening channel.")
        return Channel()


def test_one_connection_serves_all_commands() -> None:
    connection = Connection()
    remote = shell.Remote("db1", connection)
    assert [remote.run(["a", "b c"], timeout_s=10), remote.run(["d"], timeout_s=10)] == [
        "a 'b c'",
        "d",
    ]
    assert connection.dialled == 1


def test_a_file_may_be_written_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = shell.Remote("db1", Connection())
    ran = list[str]()
    monkeypatch.setattr(remote, "run", lambda argv, **_: ran.append(" ".join(argv)))
    remote.write(Path("/etc/x"), "text", sudo=True)
    assert all(line.startswith("sudo -n -- ") for line in ran)
    assert [line.split()[3] for line in ran] == ["mkdir", "install", "dd", "mv", "sync"]


def test_a_connection_whose_host_was_switched_off_is_made_anew() -> None:
    connection = Connection()
    remote = shell.Remote("db1", connection)
    remote.run(["a"], timeout_s=10)
    connection.is_silent = True
    assert remote.run(["b"], timeout_s=10) == "b"
    connection.is_connected = False
    assert remote.run(["c"], timeout_s=10) == "c"
    assert connection.dialled == 3


def test_a_host_that_stays_away_is_told_after_one_more_try() -> None:
    connection = Connection()
    remote = shell.Remote("db1", connection)
    remote.run(["a"], timeout_s=10)
    connection.is_silent = True

    def refused() -> None:
        raise TimeoutError("timed out")

    connection.open = refused  # type: ignore[method-assign]
    with pytest.raises(CommandFailed, match="a on db1: exit code 127: SSH: timed out"):
        remote.run(["a"], timeout_s=10)


def test_connections_are_kept_for_whoever_asks_next_and_closed_at_the_end() -> None:
    with shell.connections_kept():
        with shell.remote("db1") as one, shell.remote("db2") as other:
            assert one is not other
        with shell.remote("db1") as again:
            assert again is one
    with shell.remote("db1") as later:
        assert later is not one
