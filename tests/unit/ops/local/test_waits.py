"""Waits for parts of a local cluster, with small programs in their place: slow, stuck and dead ones."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ops.errors import LocalFault
from ops.local import preflight, process
from ops.local.cluster import LocalCluster
from ops.local.layout import Layout
from ops.local.parts import Part
from ops.run.waiting import Patience

# Looks, of which each takes longer on a busy machine: no time is measured here.
LOOKS = 40
SLOW = """
import socket, sys, time
for line in range(80):
    print(line, flush=True)
    time.sleep(0.05)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(60)
"""
STUCK = "import signal; print('booting', flush=True); signal.pause()"
DEAD = "import sys; sys.exit('no such plug-in')"

Start = Callable[[str], None]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Function that starts a part which is this program, and waits for it."""
    cluster = LocalCluster(tmp_path)
    layout = Layout(dir=tmp_path, numbers=(1,))
    layout.run_dir.mkdir()
    layout.state_file.write_text(layout.to_json())
    port = preflight.free_port("127.0.0.1", 12_100)
    counted = itertools.count()
    looks = partial(Patience, stalled_s=LOOKS, clock=lambda: float(next(counted)))
    monkeypatch.setattr("ops.local.processes.Patience", looks)

    def start(program: str) -> None:
        argv = [sys.executable, "-c", program, str(port)]
        address = ("127.0.0.1", port)
        one = Part(name="epmd", kind="epmd", argv=argv, env={}, address=address, stop_within_s=1)
        monkeypatch.setattr("ops.local.cluster.part", lambda _layout, _name: one)
        cluster.start("epmd")

    yield start
    process.kill(process.marked(f"{tmp_path}#"))


def test_a_part_that_is_slow_and_writes_its_log_is_waited_for(start: Start) -> None:
    start(SLOW)


def test_a_part_at_which_nothing_moves_is_given_up_with_the_end_of_its_log(start: Start) -> None:
    with pytest.raises(LocalFault, match=r"does not answer .*without progress: booting \("):
        start(STUCK)


def test_a_part_that_has_ended_is_not_waited_for(start: Start) -> None:
    with pytest.raises(LocalFault, match="ended at its start: no such plug-in"):
        start(DEAD)
