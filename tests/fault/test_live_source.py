"""Promise: through kills of driver, executors and brokers, each stored message is in the sink once.

`TESTS_LIVE_MINUTES` sets how long faults go on; by default each happens once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from messagebus import BusConfig, Replay, Stream, declare
from ops.local.cluster import LocalCluster
from spark.pack import pack
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import write_list
from tests.support.load import publishing

ROOT = Path(__file__).resolve().parents[2]
MINUTES = float(os.environ.get("TESTS_LIVE_MINUTES", "0"))
WITHIN_S = 180.0
BROKERS = ("mb1", "mb2", "mb3")
CORES = "local-cluster[2,1,1024]"
EXECUTOR = b"CoarseGrainedExecutorBackend"
pytestmark = pytest.mark.timeout(round((900 + MINUTES * 60) * FACTOR))


class Live:
    """The live job under spark-submit, on two executors that have nothing of ours but an archive."""

    def __init__(self, cluster: LocalCluster, topic: str, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._out = folder / "out"
        pack(folder / "messagebus-spark.zip")
        environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        environ |= cluster.client_env() | {"PYSPARK_PYTHON": sys.executable}
        self._environ = environ
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.host": "127.0.0.1",
            "spark.task.maxFailures": "20",
            **{
                f"spark.executorEnv.{name}": text
                for name, text in cluster.client_env().items()
                if name.startswith("MESSAGEBUS_")
            },
        }
        self._argv = [
            *(str(Path(sys.executable).parent / "spark-submit"), "--master", CORES),
            *("--driver-memory", "600m", "--executor-memory", "600m"),
            *("--py-files", str(folder / "messagebus-spark.zip")),
            *itertools.chain(*(("--conf", f"{key}={text}") for key, text in settings.items())),
            *(str(ROOT / "spark" / "live.py"), "--topic", topic, "--out", str(self._out)),
            *("--keep", "--every", "1s", "--rows-max", "20000"),
        ]

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen(
            [*self._argv, *more],
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        return self._process

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for pid in self.executors():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def executors(self) -> list[int]:
        """Return the processes of its executors: those of its group, or of this run's folder."""
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (each / "cmdline").read_bytes()
                if EXECUTOR in words and os.getpgid(int(each.name)) == self._group:
                    found.append(int(each.name))
        return found

    @property
    def _group(self) -> int:
        return self._process.pid if self._process is not None else -1

    @property
    def batches(self) -> int:
        return len([*(self._out / "tables" / "minutes").glob("batch=*/_SUCCESS")])

    def wait_batches(self, more: int) -> None:
        until = self.batches + more
        eventually(lambda: self.batches >= until or self.check(), within_s=WITHIN_S)

    def check(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.said
        return False

    @property
    def said(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-3_000:]

    def rows(self) -> ds.Dataset:
        return ds.dataset(
            str(self._out / "tables" / "messages"), format="parquet", partitioning="hive"
        )

    def minutes(self) -> ds.Dataset:
        return ds.dataset(
            str(self._out / "tables" / "minutes"), format="parquet", partitioning="hive"
        )

    @property
    def page(self) -> str:
        return (self._out / "live.html").read_text()


@pytest.fixture
def live(broken: LocalCluster, topic: str, tmp_path: Path) -> Iterator[Live]:
    made = Live(broken, topic, tmp_path)
    yield made
    made.kill()


def test_kills_of_driver_executors_and_brokers_leave_each_stored_message_in_the_sink_once(
    broken: LocalCluster, bus: BusConfig, topic: str, live: Live
) -> None:
    assert declare(bus, [Stream(topic)]).complete
    chance = random.Random(21)
    faults = ["executor", "broker", "driver", "list"]
    if MINUTES:
        faults *= 500
        chance.shuffle(faults)
    until_s = time.monotonic() + MINUTES * 60
    done = Counter[str]()
    write_list(broken, BROKERS[:2])  # the third one is new to the query
    with publishing(bus, topic, publishers=3) as load:
        live.start()
        live.wait_batches(2)
        for fault in faults:
            if MINUTES and time.monotonic() > until_s:
                break
            done[fault] += 1
            name = chance.choice(BROKERS)
            match fault:
                case "driver":
                    live.kill()
                    live.start()
                case "executor":
                    os.kill(
                        chance.choice(eventually(live.executors, within_s=WITHIN_S)), signal.SIGKILL
                    )
                case "broker":
                    broken.kill(name)
                    live.wait_batches(1)
                    broken.start(name)
                case "list":
                    write_list(broken, [each for each in BROKERS if each != name])
                    live.wait_batches(2)
                    write_list(broken, BROKERS)
            live.wait_batches(2)
    broken.wait_ready()
    live.kill()
    assert live.start("--once").wait(WITHIN_S) == 0, live.said
    stored = Counter((each.broker, each.offset, each.message_id) for each in Replay(bus, topic))
    rows = live.rows().to_table(columns=["broker", "offset", "message_id", "gap"]).to_pylist()
    assert not [row for row in rows if row["gap"]]
    assert Counter((row["broker"], row["offset"], row["message_id"]) for row in rows) == stored
    assert load.confirmed_ids() <= {row["message_id"] for row in rows}
    assert sum(live.minutes().to_table().column("messages").to_pylist()) == len(rows)
    assert 'http-equiv="refresh"' in live.page
    assert "read: " in live.page
    print(f"faults {dict(done)}, rows {len(rows)}, batches {live.batches}")
