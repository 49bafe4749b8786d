"""Processes of a worker, and their supervisor."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from messagebus import App
from messagebus.worker import process, supervisor
from messagebus.worker.process import STOP, Parent, unfinished
from messagebus.worker.supervisor import (
    Supervisor,
    child_command,
    how_it_ended,
    is_polite,
    together,
)
from tests.support.eventually import eventually, eventually_async


def test_what_was_not_finished_is_told_by_name() -> None:
    told = unfinished({"orders/billing": 2, "queue:jobs": 0}, 2.5)
    assert told == ("stopped; not finished within 2.5 s, to be delivered again: orders/billing 2")


class Asked(App):
    """App that counts how often it is asked to stop."""

    asked = 0

    def request_stop(self) -> None:
        self.asked += 1


ENDS: list[Callable[[socket.socket, Parent], object]] = [
    lambda line, _parent: line.send(STOP),
    lambda line, _parent: line.close(),
    lambda _line, parent: parent.stop(),
]


@pytest.mark.parametrize("end", ENDS, ids=["told", "the parent died", "a signal"])
def test_a_child_that_is_still_importing_is_left_at_once(
    end: Callable[[socket.socket, Parent], object],
) -> None:
    ours, theirs = socket.socketpair()
    left: list[int] = []
    with ours, theirs:
        parent = Parent(theirs, leave=left.append)
        end(ours, parent)
        eventually(lambda: left == [0], within_s=5)


@pytest.mark.parametrize("end", ENDS, ids=["told", "the parent died", "a signal"])
def test_an_app_is_asked_and_left_when_it_does_not_end_in_time(
    end: Callable[[socket.socket, Parent], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LEAVE_AFTER_S", 0.1)
    ours, theirs = socket.socketpair()
    left: list[int] = []
    app = Asked()
    with ours, theirs:
        parent = Parent(theirs, grace_s=0, leave=left.append)
        parent.watch(app)
        end(ours, parent)
        eventually(lambda: left == [1], within_s=5)
        parent.stop()
    assert app.asked == 1


def test_a_parent_that_reads_late_gets_whole_lines() -> None:
    """So does one with a look that is longer than a socket takes at once."""
    ours, theirs = socket.socketpair()
    look = {"ready": True, "subscriptions": {f"orders/{n}": "open" for n in range(20_000)}}
    with ours, theirs, ours.makefile("rb") as lines:
        parent = Parent(theirs, leave=lambda _code: None)
        for _ in range(3):
            parent.tell(look, 1)
        ours.setblocking(False)
        read = b""
        while read.count(b"\n") < 2:
            parent.tell(look, 1)
            read += lines.read(1 << 20) or b""
        for line in read.splitlines()[:2]:
            assert json.loads(line) == {"look": look, "port": 1}
        parent.stop()


KEPT = """
import asyncio, sys, threading, time
from messagebus import App, RetryPolicy
from messagebus.testing import MemoryBus
from messagebus.worker import process

process.LEAVE_AFTER_S = 0.1
memory = MemoryBus()
memory.declare("queue:jobs")
with memory.publisher() as publisher:
    publisher.send_safe("queue:jobs", "x")
app = App()
app.use(memory)
policy = RetryPolicy(attempts_max=1)

@app.subscriber("queue:jobs", time_limit_s=0.1, retry=policy)
async def handle(body: str) -> None:
    threading.Thread(target=time.sleep, args=(3600,), name="of-handler").start()
    print("began", flush=True)
    if sys.argv[1] == "to_thread":
        await asyncio.to_thread(time.sleep, 3600)

sys.exit(process.work(app, grace_s=5))
"""


@pytest.mark.parametrize("kind", ["thread", "to_thread"])
def test_a_thread_that_a_handler_left_behind_keeps_no_process(kind: str) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", KEPT, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "began\n"
            worker.send_signal(signal.SIGTERM)
            _, errors = worker.communicate(timeout=120)
        finally:
            worker.kill()
    assert worker.returncode == 0
    assert "stopped; left without waiting for threads: " in errors
    assert "of-handler" in errors


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (1, "ended with exit code 1"),
        (0, "ended with exit code 0"),
        (-9, "was ended by SIGKILL"),
        (-250, "was ended by signal 250"),
    ],
)
def test_how_a_child_ended(code: int, told: str) -> None:
    assert how_it_ended(code) == told


@pytest.mark.parametrize(
    ("code", "heard", "polite"),
    [
        (0, True, True),
        (1, True, False),
        *((code, False, True) for code in (-15, -2, 130)),
        *((code, True, False) for code in (-15, -2, 130)),
        (-9, False, False),
    ],
)
def test_a_child_may_be_ended_by_the_signal_before_it_hears_it(
    code: int, heard: bool, polite: bool
) -> None:
    assert is_polite(code, heard=heard) is polite


async def ended(supervisor: Supervisor, said: list[str], told: str) -> int:
    """Run it until it says this, and stop it then. Returns its exit code."""
    running = asyncio.create_task(supervisor.run())
    await eventually_async(lambda: any(told in each for each in said), within_s=60, what=told)
    supervisor._stop()
    return await running


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["/no/such/python"], "worker 1 cannot be started: No such file or directory"),
        (
            [sys.executable, "-c", "import os, sys; os.write(int(sys.argv[2]), b'rubbish\\n')"],
            "worker 1 cannot be understood: JSONDecodeError",
        ),
        ([sys.executable, "-c", "raise SystemExit(3)"], "worker 1 ended with exit code 3; again"),
    ],
)
async def test_a_child_that_cannot_be_started_or_understood_is_told(
    command: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RESTART_FIRST_MS", 1)
    said: list[str] = []
    await ended(Supervisor(command, 1, grace_s=0, say=said.append), said, told)


async def test_a_child_that_does_not_end_is_killed_after_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "LEAVE_AFTER_S", 0.1)
    text = (
        "import os, sys, time\n"
        'os.write(int(sys.argv[2]), b\'{"look": {"ready": true}, "port": null}\\n\')\n'
        "time.sleep(600)\n"
    )
    said: list[str] = []
    deaf = Supervisor([sys.executable, "-c", text], 1, grace_s=0, say=said.append)
    running = asyncio.create_task(deaf.run())
    await eventually_async(lambda: deaf.ask()("/ready").code == 200, within_s=60)
    deaf._stop()
    assert await running == 1
    assert "does not end: killed" in said[-1]
    assert deaf.ask()("/ready").code == 503


def test_all_children_must_be_ready() -> None:
    ready, starting = {"ready": True}, {"ready": False}
    assert together({"worker 1": ready, "worker 2": ready}, False)["ready"]
    assert not together({"worker 1": ready, "worker 2": starting}, False)["ready"]
    stopping = together({"worker 1": ready}, True)
    assert (stopping["ready"], stopping["status"]) == (False, "stopping")


def test_a_child_is_the_same_command_for_one_process() -> None:
    assert child_command("shop:app", grace_s=2.5, verbose=True, form="json") == [
        sys.executable,
        *(
            "-m",
            "messagebus",
            "worker",
            "shop:app",
            "--grace-s",
            "2.5",
            "--log",
            "json",
            "--verbose",
        ),
    ]
