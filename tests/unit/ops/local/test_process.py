"""Programs of a local cluster: their command lines, root folders and processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ops.errors import LocalFault
from ops.local import process, roots
from ops.local.layout import HERE, Layout, ServerChoice
from ops.local.parts import broker_argv, broker_environment, epmd_argv, part, part_names
from ops.local.process import Process
from tests.support.eventually import eventually

# The system call that ends one thread; libc's own exit ends them all.
SYS_EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]


def spawned(folder: Path, *argv: str, **env: str) -> Process:
    """Start a program with its files in a folder, which is its mark, too."""
    return process.spawn(
        argv, env=env, log=folder / "log", pid_file=folder / "pid", mark=str(folder)
    )


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Kill what a test has started and all that this has started, however the test ends."""
    yield
    while left := process.marked(str(tmp_path)):
        process.kill([member for one in left for member in process.hold(one)])


@pytest.fixture
def sleeper(tmp_path: Path) -> Process:
    return spawned(tmp_path, "/bin/sleep", "60")


def test_a_started_process_is_found_by_its_pid_file_and_by_its_mark(
    sleeper: Process, tmp_path: Path
) -> None:
    assert process.find(tmp_path / "pid") == sleeper
    # The kernel lets us go on a moment before it has laid out the environment of what it started.
    eventually(lambda: process.marked(str(tmp_path)) == [sleeper], within_s=10)


def test_a_process_that_goes_on_gets_none_of_the_locks_of_its_starter(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        sleeper = spawned(tmp_path, "/bin/sleep", "60")
    eventually(lambda: process.marked(str(tmp_path)) == [sleeper], within_s=10)
    kept = {fd.readlink() for fd in Path(f"/proc/{sleeper.pid}/fd").iterdir()}
    assert tmp_path / "lock" not in kept


def test_a_pid_that_belongs_to_somebody_else_is_never_signalled(
    sleeper: Process, tmp_path: Path
) -> None:
    other = Process(sleeper.pid, sleeper.started - 1)
    assert not other.is_alive
    assert not process.send(other, signal.SIGKILL)
    assert sleeper.is_alive
    (tmp_path / "pid").write_text(f"{other.pid} {other.started}\n")
    assert process.find(tmp_path / "pid") is None


def test_a_family_is_a_process_and_all_that_it_started(tmp_path: Path) -> None:
    started = spawned(
        tmp_path, "/bin/sh", "-c", "(setsid sleep 60 & wait) & wait", PATH="/usr/bin:/bin"
    )
    # Two shells, and the sleeper in a session of its own.
    family = eventually(
        lambda: found if len(found := process.family(started)) == 3 else [], within_s=10
    )
    process.kill(family)
    assert [member for member in family if member.is_alive] == []


def test_a_family_that_grows_is_held_whole(tmp_path: Path) -> None:
    """A child that was missed would outlive the kill of all others."""
    started = spawned(
        tmp_path, "/bin/sh", "-c", "while :; do sleep 60 & sleep 0.002; done", PATH="/usr/bin:/bin"
    )
    eventually(lambda: len(process.family(started)) > 3, within_s=10)
    held = process.hold(started)
    assert {one.state for one in held} <= {*process.STOPPED, "D"}, "in vfork it waits for its child"
    process.kill(held)
    assert process.marked(str(tmp_path)) == []


def test_no_thread_of_what_is_held_runs_on(tmp_path: Path) -> None:
    """One thread takes the signal. The others ran on for as long as it waited for a processor."""
    threads = (
        "import hashlib, threading\n"
        "def work():\n"
        "    while True: hashlib.sha256(bytes(2_000_000)).digest()\n"
        "for _ in range(6): threading.Thread(target=work).start()\n"
    )
    started = spawned(tmp_path, sys.executable, "-c", threads)
    tasks = Path(f"/proc/{started.pid}/task")
    for _ in range(20):
        eventually(lambda: len(list(tasks.iterdir())) == 7, within_s=10)
        process.hold(started)
        stats = [(task / "stat").read_text() for task in tasks.iterdir()]
        assert {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}
        process.send(started, signal.SIGCONT)


def test_a_killed_child_is_gone_at_once_and_leaves_no_zombie(sleeper: Process) -> None:
    process.kill([sleeper])
    assert not sleeper.is_alive
    assert not Path(f"/proc/{sleeper.pid}").exists()


def test_a_stopped_process_says_so(sleeper: Process) -> None:
    process.send(sleeper, signal.SIGSTOP)
    assert process.wait_gone([sleeper], within_s=0) == [sleeper]
    assert sleeper.state in "TRS"


def test_a_process_is_not_gone_while_one_of_its_threads_still_ends(tmp_path: Path) -> None:
    first_thread_ends = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        f"ctypes.CDLL(None).syscall({SYS_EXIT}, 0)\n"
    )
    started = spawned(tmp_path, sys.executable, "-c", first_thread_ends)
    eventually(lambda: started.state == "Z", within_s=10)
    assert process.wait_gone([started], within_s=0) == [started]
    process.kill([started])
    assert not Path(f"/proc/{started.pid}").exists()


@pytest.mark.parametrize("text", ["", "12", "a b", "1 2 3", "-1 -1"])
def test_a_pid_file_that_makes_no_sense_names_nobody(text: str, tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(text)
    assert process.find(tmp_path / "pid") is None
    assert process.find(tmp_path / "none") is None


LAYOUT = Layout(dir=Path("/c"), numbers=(1, 2))


def test_parts_start_in_this_order() -> None:
    assert part_names(LAYOUT) == ["epmd", "mb1", "mb2", "mb1-agent", "mb2-agent", "haproxy"]


def test_servers_start_last_and_postgresql_does_not_wait_for_its_clients_to_leave() -> None:
    layout = replace(
        LAYOUT, choices=(ServerChoice("redis", 6379), ServerChoice("postgresql", 5432))
    )
    assert part_names(layout)[-3:] == ["haproxy", "redis", "postgresql"]
    assert part(layout, "redis").argv[-1] == "/c/servers/redis/redis.conf"
    assert part(layout, "redis").stop is signal.SIGTERM
    assert part(layout, "postgresql").stop is signal.SIGINT
    assert part(layout, "postgresql").address == ("127.0.0.10", 5432)


def test_an_agent_is_the_command_of_the_wheel() -> None:
    agent = part(LAYOUT, "mb2-agent")
    config = "/c/nodes/mb2/agent.toml"
    assert agent.argv == [sys.executable, "-m", "messagebus", "-v", "agent", "--config", config]
    assert agent.address == ("127.0.0.12", 8081)


def test_haproxy_runs_as_master_and_worker() -> None:
    assert part(LAYOUT, "haproxy").argv == [
        *("/usr/sbin/haproxy", "-W"),
        *("-f", "/c/haproxy/haproxy.cfg"),
        *("-p", "/c/haproxy/master.pid"),
    ]


@pytest.mark.parametrize("name", ["mb3", "mb3-agent", "balancer", ""])
def test_what_is_not_there_is_told(name: str) -> None:
    with pytest.raises(LocalFault):
        part(LAYOUT, name)


NODE = Layout(dir=Path("/c"), numbers=(2,)).nodes[0]


def test_a_broker_is_started_in_the_foreground_under_its_own_name() -> None:
    assert broker_argv(NODE) == [
        "/usr/lib/rabbitmq/bin/rabbitmq-server",
        "-noinput",
        *("+S", "2:2", "+SDcpu", "2:2", "+SDio", "4"),
        *("+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"),
        *("-start_epmd", "false"),
        *("-sname", "mb2@localhost"),
        *("-kernel", "inet_dist_listen_min", "21002"),
        *("-kernel", "inet_dist_listen_max", "21002"),
        *("-kernel", "inet_dist_use_interface", "{127,0,0,1}"),
        *("-mnesia", "core_dir", '"/c/nodes/mb2/log"'),
    ]


def test_a_broker_sees_nothing_of_the_users_own_settings() -> None:
    environment = broker_environment(NODE, epmd_port=21000)
    assert environment["RABBITMQ_CONF_ENV_FILE"] == "/c/nodes/mb2/none"
    assert environment["RABBITMQ_MNESIA_BASE"] == "/c/nodes/mb2/data"
    assert environment["HOME"] == "/c/nodes/mb2/home"
    assert environment["ERL_EPMD_PORT"] == "21000"
    assert environment["ERL_EPMD_ADDRESS"] == "127.0.0.1"


def test_epmd_stays_in_the_foreground_on_loopback() -> None:
    assert epmd_argv(port=4) == ["/usr/bin/epmd", "-address", "127.0.0.1", "-port", "4"]
    assert epmd_argv(["127.0.7.11"], port=4)[2] == "127.0.0.1,127.0.7.11"


def _root(folder: Path, version: str) -> Path:
    for program in roots.PROGRAMS:
        path = folder / program.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / roots.SERVERS / f"rabbitmq_server-{version}").mkdir(parents=True)
    return folder


def test_programs_of_this_system_are_started_as_they_are() -> None:
    assert roots.chrooted(HERE, Path("/c"), ["/usr/bin/epmd", "-d"]) == ["/usr/bin/epmd", "-d"]


def test_programs_of_a_root_folder_are_entered_with_the_clusters_folder() -> None:
    argv = roots.chrooted(Path("/roots/sid"), Path("/c"), ["/usr/bin/epmd", "-d"])
    assert argv[0] == "/usr/bin/unshare"
    assert argv[-4:] == ["/roots/sid", "/c", "/usr/bin/epmd", "-d"]


def test_the_version_is_that_of_the_folder(tmp_path: Path) -> None:
    assert roots.version(_root(tmp_path, "4.3.6")) == "4.3.6"
    assert roots.version(tmp_path / "empty") == ""


def test_a_version_is_a_root_folder_or_this_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "HERE", _root(tmp_path / "here", "3.10.8"))
    monkeypatch.setattr(roots, "ROOTS", tmp_path / "roots")
    sid = _root(tmp_path / "roots" / "sid", "4.3.6")
    assert roots.of_version("3.10", say=print) == tmp_path / "here"
    assert roots.of_version("4.3", say=print) == sid
    layout = Layout(dir=tmp_path, numbers=(1, 2), root=Path("/r"), versions={2: "4.3"})
    assert [roots.root_of(layout, node) for node in layout.nodes] == [Path("/r"), sid]


def test_another_version_than_wanted_is_told_with_the_way_to_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "HERE", tmp_path / "here")
    monkeypatch.setattr(roots, "ROOTS", tmp_path / "roots")
    sid = _root(tmp_path / "roots" / "sid", "4.30.0")
    with pytest.raises(LocalFault, match=rf"4\.30\.0 in Debian's sid, not 4\.3; .*--root {sid}"):
        roots.of_version("4.3", say=print)


def test_a_root_folder_without_a_program_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "ROOTS", tmp_path)
    (tmp_path / "sid").mkdir()
    with pytest.raises(LocalFault, match=r"package erlang-base"):
        roots.make("sid", say=print)
