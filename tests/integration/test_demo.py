"""The demo as a person starts and ends it: the whole way, and nothing is left running whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.harness.workers import read_progress
from tests.support.eventually import eventually

CHECKOUT = Path(__file__).resolve().parents[2]
NETWORK = f"127.{1 + os.getpid() % 250}.200"
START_S = 300.0
# Generous: a busy machine stops a cluster in minutes, and that is no fault.
END_S = 600.0
WHOLE_S = 3_600.0


class Demo:
    """``python -m bench demo --small`` in a session of its own, as from a terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        argv = ["-m", "bench", "demo", "--small", "--dir", str(folder), "--network", NETWORK]
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def end(self, within_s: float = END_S) -> tuple[int, str, str]:
        """Return exit code, standard output, standard error."""
        out, error = self.process.communicate(timeout=within_s)
        return self.process.returncode, out, error

    def left(self) -> list[str]:
        """Return the processes that name the folder of this demo in their command or environment."""
        return [found.name() for found in psutil.process_iter() if self._is_ours(found)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            return False
        return any(str(self.folder) in word for word in words)


@pytest.fixture
def demo() -> Iterator[Demo]:
    # tmp_path names the test: with it HAProxy's socket has more than the 107 bytes of a path.
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        found = Demo(Path(folder) / "run")
        yield found
        if found.process.poll() is None:
            found.process.send_signal(signal.SIGTERM)
            found.end()


def messages_flow(demo: Demo) -> bool:
    assert demo.process.poll() is None, demo.end()
    progress = read_progress(demo.folder)
    return any(each.done for each in progress.values())


def cluster_starts(demo: Demo) -> bool:
    assert demo.process.poll() is None, demo.end()
    return len(demo.left()) > 3


@pytest.mark.timeout(WHOLE_S + END_S)
def test_a_whole_demo_loses_nothing_says_so_twice_and_leaves_its_report(demo: Demo) -> None:
    code, out, error = demo.end(WHOLE_S)
    assert (code, error) == (0, ""), f"{out[-4000:]}\n{error}"
    assert "audit holds: 2,000 confirmed, 4,000 of 4,000 expected deliveries, 0 lost" in out
    assert (demo.folder / "report/report.html").exists()
    # What was published again after a kill is stored twice.
    stored = re.search("the live job's page, ([0-9,]+) messages: ", out)
    assert stored, out[-4000:]
    assert int(stored[1].replace(",", "")) >= 2_000, out[-4000:]
    assert demo.left() == []


@pytest.mark.guarantee("demo-leaves-nothing")
def test_ctrl_c_while_messages_flow_stops_all_that_was_started(demo: Demo) -> None:
    eventually(lambda: messages_flow(demo), within_s=START_S)
    demo.process.send_signal(signal.SIGINT)
    code, _, error = demo.end()
    assert code == 130
    assert error.startswith("bench: interrupted by SIGINT")
    assert error.count("\n") == 1
    assert demo.left() == []
    assert not (demo.folder / "cluster").exists()
    manifest = json.loads((demo.folder / "manifest.json").read_text())
    assert manifest["complete"] is False
    assert list(demo.folder.glob("published-*.ndjson"))


def test_sigterm_while_the_cluster_starts_stops_all_that_was_started(demo: Demo) -> None:
    eventually(lambda: cluster_starts(demo), within_s=START_S)
    demo.process.send_signal(signal.SIGTERM)
    code, _, error = demo.end()
    assert (code, error.count("\n")) == (130, 1), error
    assert demo.left() == []
