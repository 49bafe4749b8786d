"""Promise: through kills of driver, executors and brokers, each stored message is in the sink once.

`TESTS_LIVE_MINUTES` sets how long faults go on; by default each happens once, the driver's kill last.
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

import pyarrow as pa
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
WITHIN_S = 400.0
BROKERS = ("mb1", "mb2", "mb3")
# Two executors that can be killed apart, each a JVM, where there is time for them.
CORES = f"local-cluster[{2 if MINUTES else 1},1,1024]"
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTOR = b"CoarseGrainedExecutorBackend"
# What a row of the sink is compared by.
BY = [("broker", "ascending"), ("offset", "ascending")]
STORED = ("broker", "offset", "message_id")
MINUTE_MS = 60_000
pytestmark = pytest.mark.timeout(round((900 + MINUTES * 60) * FACTOR))


class Live:
    """The live job under spark-submit, on executors that have nothing of ours but an archive."""

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
            "spark.sql.adaptive.enabled": "false",
            # Code for rows so few takes longer than to do without.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.executor.extraJavaOptions": JAVA,
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
            *("--driver-java-options", JAVA),
            *("--py-files", str(folder / "messagebus-spark.zip")),
            *itertools.chain(*(("--conf", f"{key}={text}") for key, text in settings.items())),
            *(str(ROOT / "spark" / "live.py"), "--topic", topic, "--out", str(self._out)),
            *("--keep", "--every", "1s", "--rows-max", "20000"),
        ]

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

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
        return len([*(self._out / "tables" / "minutes").glob("batch=*/*.parquet")])

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

    def table(self, name: str, *columns: str) -> pa.Table:
        """Read columns of a table of the sink, of which no batch may be under way."""
        found = ds.dataset(str(self._out / "tables" / name), format="parquet", partitioning="hive")
        return found.to_table(columns=[*columns])

    @property
    def messages(self) -> int:
        """The messages of all batches; 0 while one of them is being replaced."""
        with contextlib.suppress(OSError):
            return sum(self.table("minutes", "messages").column(0).to_pylist())
        return 0

    def stop(self) -> None:
        """End it in order, behind its last batch."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(WITHIN_S * FACTOR) is not None

    @property
    def page(self) -> str:
        return (self._out / "live.html").read_text()


@pytest.fixture
def live(broken: LocalCluster, topic: str, tmp_path: Path) -> Iterator[Live]:
    made = Live(broken, topic, tmp_path)
    yield made
    made.kill()


def stored(bus: BusConfig, topic: str) -> pa.Table:
    """Read what the streams hold, in one pass."""
    found = [
        (each.broker, each.offset, each.message_id, each.published_ms // MINUTE_MS, len(each.body))
        for each in Replay(bus, topic)
    ]
    columns = [[*column] for column in zip(*found, strict=True)]
    return pa.table(dict(zip((*STORED, "minute", "bytes"), columns, strict=True))).sort_by(BY)


def by_minute(rows: pa.Table, *sums: str) -> set[tuple[int, ...]]:
    """Return minute, broker and sums of columns, as the batch jobs would find them."""
    found = rows.group_by(["minute", "broker"]).aggregate([(name, "sum") for name in sums])
    return {tuple(row.values()) for row in found.to_pylist()}


@pytest.mark.guarantee("spark-live-once")
def test_kills_of_driver_executors_and_brokers_leave_each_stored_message_in_the_sink_once(
    broken: LocalCluster, bus: BusConfig, topic: str, live: Live
) -> None:
    assert declare(bus, [Stream(topic)]).complete
    chance = random.Random(21)
    faults = ["executor", "broker", "list", "driver"]
    if MINUTES:
        faults *= 500
        chance.shuffle(faults)
    until_s = time.monotonic() + MINUTES * 60
    done = Counter[str]()
    write_list(broken, BROKERS[:2])  # the third one is new to the query
    with publishing(bus, topic, publishers=3, rate_per_s=50) as load:
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
                    found = eventually(live.executors, within_s=WITHIN_S)
                    os.kill(chance.choice(found), signal.SIGKILL)
                case "broker":
                    broken.kill(name)
                    # No batch is waited for meanwhile: the one under way may need this broker.
                    broken.start(name)
                case "list":
                    write_list(broken, [each for each in BROKERS if each != name])
                    live.wait_batches(1)
                    write_list(broken, BROKERS)
            live.wait_batches(1)
    broken.wait_ready()
    kept = stored(bus, topic)
    eventually(lambda: live.messages >= len(kept) or live.check(), within_s=WITHIN_S)
    live.stop()
    rows = live.table("messages", *STORED, "gap")
    print(f"faults {dict(done)}, rows {len(rows)}, batches {live.batches}")
    assert rows.column("gap").null_count == len(rows)
    assert rows.select(STORED).sort_by(BY).equals(kept.select(STORED))
    shown = live.table("minutes", "minute", "broker", "bytes", "messages")
    counted = kept.append_column("messages", pa.array([1] * len(kept)))
    assert by_minute(shown, "bytes", "messages") == by_minute(counted, "bytes", "messages")
    assert load.confirmed_ids() <= {*rows.column("message_id").to_pylist()}
    assert live.messages == len(rows)
    assert 'http-equiv="refresh"' in live.page
    assert "read: " in live.page
