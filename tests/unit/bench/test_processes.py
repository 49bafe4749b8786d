"""Children of a coordinator, with real and very short processes; and faults of a local cluster."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bench import processes
from bench.errors import BenchError
from bench.faults import FAULTS, drained, fault_of
from bench.processes import Answering, Child, Children, wait_until
from messagebus.admin import BrokerList
from ops.local.cluster import LocalCluster


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    found = Children(tmp_path / "logs")
    yield found
    found.stop_all()


def start(children: Children, name: str, code: str, tmp_path: Path) -> Child:
    return children.start(name, [sys.executable, "-c", code], os.environ, tmp_path)


def test_one_that_fails_is_noticed_with_its_last_words(children: Children, tmp_path: Path) -> None:
    child = start(children, "p1", "import sys; print('a'); sys.exit('no such thing')", tmp_path)
    child.process.wait(10)
    with pytest.raises(BenchError, match=r"p1 ended by itself \(exit code 1\): no such thing"):
        children.check(["p1"], may_end=True)


def test_one_that_is_killed_is_noticed(children: Children, tmp_path: Path) -> None:
    child = start(children, "p1", "import signal; signal.pause()", tmp_path)
    children.check(["p1"])
    child.process.kill()
    child.process.wait(10)
    with pytest.raises(BenchError, match=r"p1 ended by itself \(signal SIGKILL\): it said nothing"):
        children.check(["p1"])


def test_one_that_has_done_its_work_may_end_where_that_is_allowed(
    children: Children, tmp_path: Path
) -> None:
    start(children, "p1", "", tmp_path).process.wait(10)
    children.check(["p1"], may_end=True)
    with pytest.raises(BenchError, match="exit code 0"):
        children.check(["p1"])


def test_all_are_stopped_and_nobody_else(children: Children, tmp_path: Path) -> None:
    other = Children(tmp_path / "other")
    stranger = start(other, "stranger", "import signal; signal.pause()", tmp_path)
    names = ["p1", "p2"]
    mine = [start(children, name, "import signal; signal.pause()", tmp_path) for name in names]
    assert children.stop_all() == []
    assert [child.exit_code for child in mine] == [-signal.SIGTERM, -signal.SIGTERM]
    assert stranger.exit_code is None
    other.stop_all()


def test_what_a_child_started_ends_with_it(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_WITHIN_S", 0.2)
    code = (
        "import signal, subprocess, sys\n"
        "wait = 'import signal; signal.pause()'\n"
        "print(subprocess.Popen([sys.executable, '-c', wait]).pid, flush=True)\n"
        "signal.pause()"
    )
    child = start(children, "p1", code, tmp_path)
    wait_until(child.last_line, within_s=60, what="the child's child")
    assert children.stop_all() == ["p1"]
    assert child.exit_code == -signal.SIGTERM
    with suppress(psutil.NoSuchProcess):  # the first process of a container may not wait for it
        assert psutil.Process(int(child.last_line())).status() == psutil.STATUS_ZOMBIE


def test_a_process_that_ends_without_an_answer_is_not_said_to_be_late() -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('no such setting')"]
    with (
        Answering(argv, os.environ, answer_within_s=60) as child,
        pytest.raises(BenchError, match="it ended: no such setting"),
    ):
        child.line()


def test_a_command_that_does_not_exist_is_one_clear_error(
    children: Children, tmp_path: Path
) -> None:
    with pytest.raises(BenchError, match="x: cannot start no-such-command: No such file"):
        children.start("x", ["no-such-command"], {}, tmp_path)


def test_a_wait_ends_with_its_condition_or_says_what_it_waited_for() -> None:
    answers = iter([False, True])
    wait_until(lambda: next(answers), within_s=1, what="something")
    with pytest.raises(BenchError, match="not within 0 s: all load processes running"):
        wait_until(lambda: False, within_s=0, what="all load processes running")
    with pytest.raises(BenchError, match="not within 0 s: 1 left"):
        wait_until(lambda: False, within_s=0, what=lambda: "1 left")


def test_what_still_moves_is_waited_for_and_what_stands_is_not() -> None:
    moves = iter(range(100))
    with pytest.raises(BenchError, match="the end of it"):
        wait_until(lambda: False, within_s=0.1, what="the end of it", moves=lambda: 0)
    wait_until(
        lambda: next(moves) > 8, within_s=0.2, what="the end of it", moves=lambda: next(moves)
    )


def test_a_wait_ends_with_the_fault_that_its_check_raises() -> None:
    def check() -> None:
        raise BenchError("p1 ended by itself")

    with pytest.raises(BenchError, match="p1 ended by itself"):
        wait_until(lambda: False, within_s=60, what="nothing", check=check)


def test_draining_is_the_next_generation_of_the_list() -> None:
    listed = BrokerList.parse("# cluster: c\n# generation: 4\na:1\nb:2\n")
    shut = drained(listed, "b:2", draining=True)
    assert shut.render() == "# cluster: c\n# generation: 5\na:1\nb:2 draining\n"
    assert drained(shut, "b:2", draining=False).render() == (
        "# cluster: c\n# generation: 6\na:1\nb:2\n"
    )


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_says_what_it_does_before_it_does_anything(name: str, tmp_path: Path) -> None:
    fault = fault_of(name, LocalCluster(tmp_path), "mb2")
    assert str(fault).startswith(name)
    assert fault.cuts in ("", "kill", "cut")
    assert fault.lasts_s <= 5
