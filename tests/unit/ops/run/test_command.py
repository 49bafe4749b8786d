"""Commands as data, and the shells that run them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from paramiko.ssh_exception import SSHException

from inventory import shell
from inventory.errors import CommandFailed
from messagebus.errors import ConfigError, MessageBusError
from ops.__main__ import main
from ops.errors import LockHeld, NoAnswer, OpsError, PlanFailed, RunOpen
from ops.local import files
from ops.local.layout import Layout
from ops.run import command
from ops.run.command import LOCK, RunOptions, carry, opened, options_of_run
from ops.run.journal import Journal
from ops.run.plan import Command, Plan, Step
from tests.support.eventually import eventually


def go(folder: Path, **said: bool) -> RunOptions:
    options = {"dry_run": False, "yes": True, "undo": False, **said}
    return RunOptions(file=folder / "inventory.toml", **options)


def plan(*commands: str) -> Plan:
    steps = (Step(name=word, commands=(Command((word,)),)) for word in commands)
    return Plan(name="remove mb2", steps=tuple(steps))


def began(folder: Path, name: str = "remove mb2", **facts: object) -> Journal:
    journal = Journal(folder / "journal", name)
    journal.begin({"options": facts}, brokers=[name.split()[-1]])
    journal.record("true", 0.1)
    return journal


def aged(folder: Path, by: timedelta) -> None:
    """Make a run look as if it had stopped this long ago."""
    (file,) = (folder / "journal").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    at = (datetime.now(UTC) - by).strftime("%Y-%m-%dT%H:%M:%S%z")
    file.write_text("".join(json.dumps({**line, "at": at}) + "\n" for line in lines))


def test_the_journal_is_read_when_the_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_lock = command.file_lock

    def others_first(file: Path, what: str) -> object:
        began(tmp_path)  # another operator, between our start and our turn
        return file_lock(file, what)

    monkeypatch.setattr(command, "file_lock", others_first)
    with opened(go(tmp_path), "remove mb2", ["mb2"]) as journal:
        assert journal.done == ("true",)


def test_who_comes_second_is_told_who_is_at_it(tmp_path: Path) -> None:
    with (
        opened(go(tmp_path), "remove mb2", ["mb2"]),
        pytest.raises(LockHeld, match="'remove mb2' is changing"),
        opened(go(tmp_path), "add mb4", ["mb4"]),
    ):
        pass


def test_operators_of_two_checkouts_exclude_each_other(tmp_path: Path) -> None:
    """The balancer is on this machine, and the paths of its files are relative."""
    copies = []
    for name in ("one", "two"):
        layout = Layout(dir=tmp_path / name, numbers=(1,))
        layout.dir.mkdir()
        layout.inventory.write_text(files.inventory_toml(layout))
        copies.append(layout.inventory)
    other = Layout(dir=tmp_path, numbers=(1,), network="127.0.7").inventory
    other.write_text(files.inventory_toml(Layout(dir=tmp_path, numbers=(1,), network="127.0.7")))
    with command.locked(copies[0], "remove mb1"):
        with command.locked(other, "remove mb1"):
            pass
        with (
            pytest.raises(LockHeld, match="'remove mb1' is changing"),
            command.locked(copies[1], "remove mb3"),
        ):
            pass
    with command.locked(copies[1], "remove mb3"):
        pass


ITS_COMMAND_GOES_ON = """
import sys
from pathlib import Path
from ops.run.command import cluster_lock
from ops.run.plan import Command
from ops.run.runner import HostRunner

lock, pipe = map(Path, sys.argv[1:])
with cluster_lock(lock, lock.with_name("inventory.toml"), "move mb2") as locks:
    HostRunner(keeps=locks).run(Command(("sh", "-c", 'cat "$0" > "$0.read"', str(pipe))))
"""


@pytest.mark.guarantee("playbook-killed-anywhere")
def test_a_command_that_outlives_its_killed_playbook_keeps_all_others_out(tmp_path: Path) -> None:
    lock, pipe = tmp_path / LOCK, tmp_path / "pipe"
    os.mkfifo(pipe)
    argv = [sys.executable, "-c", ITS_COMMAND_GOES_ON, str(lock), str(pipe)]
    with subprocess.Popen(argv) as playbook:
        with pipe.open("w"):  # once the command reads
            playbook.kill()
            playbook.wait()
            with pytest.raises(LockHeld, match="'move mb2'"), command.file_lock(lock, "add mb4"):
                pass

        def is_free() -> bool:
            with suppress(LockHeld), command.file_lock(lock, "add mb4"):
                return True
            return False

        eventually(is_free, within_s=10)


def test_a_lock_that_another_user_made_holds_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, opened_as = tmp_path / "lock", os.open

    def not_ours(path: Path, flags: int, mode: int = 0o777) -> int:
        if path == file and flags & (os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied", str(path))
        return opened_as(path, flags, mode)

    with command.file_lock(file, "add mb4"):
        monkeypatch.setattr(os, "open", not_ours)
        with pytest.raises(LockHeld, match="'add mb4'"), command.file_lock(file, "remove mb2"):
            pass
    with command.file_lock(file, "remove mb2"):
        pass


def test_a_dry_run_names_what_would_stop_the_plan_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent() -> str:
        raise NoAnswer("mb2 does not answer")

    def never() -> str:
        raise AssertionError("what a step has done is not there to be looked at")

    one = (Command(("true",)),)
    steps = (
        Step(name="see", check=lambda: "1 other broker serves, 2 must"),
        Step(name="simulate", commands=one, only_looks=True, check=never),
        Step(name="change", commands=one, guard=silent, check=never),
        Step(name="wait", check=never, foresees=lambda: "no consumer for a"),
        Step(name="end", commands=one, check=never, foresees=lambda: ""),
    )
    dry = go(tmp_path, dry_run=True)
    for seen, told in (
        (
            steps,
            [
                "would stop now: step 1, 'see': 1 other broker serves, 2 must",
                "would stop now: step 3, 'change': mb2 does not answer",
                "would stop now: step 4, 'wait': no consumer for a",
            ],
        ),
        (steps[4:], ["nothing is seen that would stop it now"]),
    ):
        with opened(dry, "remove mb2", ["mb2"]) as journal:
            carry(Plan(name="remove mb2", steps=seen), journal, dry, {})
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if line.startswith(("would", "nothing"))] == told


def test_a_dry_run_needs_no_lock_and_leaves_no_trace(tmp_path: Path) -> None:
    dry = go(tmp_path, dry_run=True)
    with (
        command.file_lock(tmp_path / LOCK, "add mb4"),
        opened(dry, "remove mb2", ["mb2"]) as journal,
    ):
        carry(plan("false"), journal, dry, {})
    assert not (tmp_path / "journal").exists()


def test_an_open_run_of_another_playbook_on_the_same_broker_comes_first(tmp_path: Path) -> None:
    began(tmp_path, "remove mb2")
    told = r"'remove mb2' is not finished, since .*--abandon"
    with pytest.raises(RunOpen, match=told), opened(go(tmp_path), "add mb2", ["mb2"]):
        pass


def test_an_open_run_on_another_broker_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began(tmp_path, "remove mb2")
    with opened(go(tmp_path), "add mb4", ["mb4"]) as journal:
        assert not journal.is_resumed
    assert "note: 'remove mb2' is not finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    "fault",
    [
        PlanFailed("hang up on the clients that are left on mb2", "1 connection of clients"),
        OpsError("the agent of mb2 is that of another"),
        ConfigError("no broker 'mb2' in the inventory"),
        NoAnswer("agent of mb3 does not answer"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_every_error_that_leaves_a_run_open_names_how_it_goes_on_and_how_it_is_given_up(
    tmp_path: Path, fault: MessageBusError
) -> None:
    began(tmp_path)
    with pytest.raises(type(fault)) as said, opened(go(tmp_path), "remove mb2", ["mb2"]):
        raise fault
    for way in ("the same command resumes it", "--undo", "--abandon"):
        assert way in str(said.value)
    with pytest.raises(OpsError) as said, opened(go(tmp_path), "add mb4", ["mb4"]):
        raise OpsError("nothing was begun")
    assert str(said.value) == "nothing was begun"


def test_a_run_that_cannot_be_taken_back_names_how_it_goes_on_and_how_it_is_given_up(
    tmp_path: Path,
) -> None:
    began(tmp_path)
    final = Plan(name="remove mb2", steps=(Step(name="true", is_final=True),))
    with (
        opened(go(tmp_path), "remove mb2", ["mb2"]) as journal,
        pytest.raises(PlanFailed, match=r"no way back.*without --undo finishes it.*--abandon"),
    ):
        carry(final, journal, go(tmp_path, undo=True), {})


def test_an_open_run_is_closed_as_it_stands(tmp_path: Path) -> None:
    began(tmp_path)
    abandoning = go(tmp_path, abandon=True)
    with pytest.raises(click.exceptions.Exit), opened(abandoning, "remove mb2", ()):
        pass
    assert not Journal(tmp_path / "journal", "remove mb2").is_resumed
    told = "no unfinished run of 'remove mb2' to close"
    with pytest.raises(OpsError, match=told), opened(abandoning, "remove mb2", ()):
        pass


def test_a_run_that_goes_on_is_ended_by_nobody(tmp_path: Path) -> None:
    with opened(go(tmp_path), "remove mb2", ["mb2"]) as journal:
        journal.begin({}, brokers=["mb2"])
        for said, ends in (({}, LockHeld), ({"dry_run": True}, click.exceptions.Exit)):
            abandoning = go(tmp_path, abandon=True, **said)
            with pytest.raises(ends), opened(abandoning, "remove mb2", ()):
                pass
        journal.record("true", 0.1)
    assert Journal(tmp_path / "journal", "remove mb2").done == ("true",)


@pytest.mark.parametrize("beside", ["abandon", "undo", "resume"])
def test_a_dry_run_writes_nothing_whatever_stands_beside_it(tmp_path: Path, beside: str) -> None:
    began(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    dry = go(tmp_path, dry_run=True, **{beside: True})
    with suppress(click.exceptions.Exit), opened(dry, "remove mb2", ["mb2"]) as journal:
        carry(plan("true", "false"), journal, dry, {})
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_the_dry_run_of_an_undo_prints_what_it_would_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began(tmp_path)
    undone = Step(name="true", undo=(Command(("back",)),))
    later = Step(name="later", undo=(Command(("half",)),))
    never = Step(name="never", undo=(Command(("not",)),))
    dry = go(tmp_path, dry_run=True, undo=True)
    with opened(dry, "remove mb2", ["mb2"]) as journal:
        carry(Plan(name="remove mb2", steps=(undone, later, never)), journal, dry, {})
    ran = [line.strip() for line in capsys.readouterr().out.splitlines() if "$" in line]
    assert ran == ["$ half", "$ back"]


DEFAULTS = {"version": "", "moves": False}


@pytest.mark.parametrize("said", [{"version": "3.12.1-1"}, {"version": ""}])
def test_a_run_keeps_the_options_that_it_began_with(
    tmp_path: Path, said: dict[str, object]
) -> None:
    journal = began(tmp_path, version="3.12.1-1", moves=False)
    found = options_of_run(journal, {"moves": False, **said}, DEFAULTS, may_come=("moves",))
    assert found == {"version": "3.12.1-1", "moves": False}


def test_other_options_than_a_run_began_with_are_refused_by_name(tmp_path: Path) -> None:
    journal = began(tmp_path, version="3.12.1-1", moves=False)
    with pytest.raises(RunOpen, match=r"began with version '3\.12\.1-1', not with version '4'"):
        options_of_run(journal, {"version": "4", "moves": False}, DEFAULTS)


def test_a_flag_that_may_come_later_is_kept_from_then_on(tmp_path: Path) -> None:
    journal = began(tmp_path, version="", moves=False)
    options = options_of_run(journal, {"version": "", "moves": True}, DEFAULTS, may_come=("moves",))
    with pytest.raises(PlanFailed):
        carry(plan("true", "false"), journal, go(tmp_path), {"options": options})
    resumed = Journal(tmp_path / "journal", "remove mb2")
    assert options_of_run(resumed, {"version": "", "moves": False}, DEFAULTS)["moves"] is True


@pytest.mark.parametrize("age", [timedelta(hours=2), timedelta(days=3), -timedelta(days=3)])
def test_a_run_of_long_ago_is_not_taken_up_unasked(tmp_path: Path, age: timedelta) -> None:
    began(tmp_path)
    aged(tmp_path, age)
    journal = Journal(tmp_path / "journal", "remove mb2")
    with pytest.raises(RunOpen, match=r"nothing was done in it for .*--resume takes it up"):
        carry(plan("true", "echo"), journal, go(tmp_path), {})
    carry(plan("true", "echo"), journal, go(tmp_path, resume=True), {})
    assert not Journal(tmp_path / "journal", "remove mb2").is_resumed


def test_the_plan_is_shown_to_whom_it_is_asked_and_of_it_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(**said: bool) -> str:
        journal = Journal(tmp_path / "journal", "remove mb2")
        carry(plan("true", "echo"), journal, go(tmp_path, **said), {})
        return capsys.readouterr().out

    monkeypatch.setattr("ops.run.command.confirm", lambda: None)
    assert shown(yes=False) == "  1. true\n     $ true\n  2. echo\n     $ echo\n"
    assert shown() == ""
    began(tmp_path)
    assert shown(dry_run=True) == "  1. true\n     $ true\n  2. echo\n     $ echo\n"
    assert shown(yes=False) == "  2. echo\n     $ echo\n"


def test_what_remains_to_be_done_is_said_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(go(tmp_path), "remove mb2", ["mb2"]) as journal:
        carry(plan("true"), journal, go(tmp_path), {}, afterwards=["mb1 was dead meanwhile"])
    assert capsys.readouterr().err.splitlines()[-1] == "mb1 was dead meanwhile"


def test_an_inventory_that_is_a_link_has_the_lock_and_the_journal_of_the_file(
    tmp_path: Path,
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.mkdir()
    (real / "inventory.toml").write_text("")
    (link / "inventory.toml").symlink_to(real / "inventory.toml")
    began(real)
    words = ["remove", "mb2", "--abandon", "--inventory", str(link / "inventory.toml")]
    assert main(words) == 0
    assert not Journal(real / "journal", "remove mb2").is_resumed


@pytest.mark.parametrize("text", ["boom[/x]", "x\x1b]0;title\x07\x1b[2J"])
def test_what_a_client_calls_itself_ends_no_playbook(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([f"client {text} waits", f"{text} did not answer", ""])
    wait = Step(name=f"wait for {text}", check=lambda: next(looks), until="all are gone")
    journal = Journal(tmp_path / "journal", "remove mb2")
    carry(Plan(name="remove mb2", steps=(wait,)), journal, go(tmp_path), {}, afterwards=[text])
    said = "".join(capsys.readouterr())
    assert text.encode("unicode_escape").decode() in said
    assert said.replace("\n", "").isprintable()
    assert not journal.is_resumed


def test_a_second_change_is_told_who_is_at_it(tmp_path: Path) -> None:
    with (
        command.file_lock(tmp_path / "lock", "add mb4"),
        pytest.raises(LockHeld, match=r"pid \d+, 'add mb4' is changing this cluster since"),
        command.file_lock(tmp_path / "lock", "remove mb1"),
    ):
        pass


def test_a_lock_that_was_let_go_is_free(tmp_path: Path) -> None:
    for _ in range(2):
        with command.file_lock(tmp_path / "lock", "add mb4"):
            pass


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


def test_without_an_inventory_a_change_says_so_and_not_that_its_lock_is_missing(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"inventory .*: name it by --inventory FILE or MESSAGEB"):
        command.locked(tmp_path / "none" / "inventory.toml", "add mb4")
