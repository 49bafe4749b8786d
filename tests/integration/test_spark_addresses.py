"""Jobs on two workers that share nothing but an object store, which is busy, refuses and lies.

The rows come there by uploads of their hosts. `TESTS_SPARK_JOBS=all` takes every job that has a session, the
live one on brokers too; by default the ingest and the audit stand for them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.clients.packages import PACKAGES
from messagebus import BusConfig, Publisher, Stream, declare
from messagebus.tools.uploads import Uploads
from spark.__main__ import jobs as commands
from spark.pack import pack
from tests.support.events import Faults, write_run
from tests.support.eventually import FACTOR, eventually
from tests.support.object_store import KEY, SECRET, ObjectStore
from tests.support.progress import without_progress

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 1500 * FACTOR
pytestmark = pytest.mark.timeout(3600)
EVENTS, LAKE = "s3a://lake/events/run-1", ("--lake", "s3a://lake/tables")
TOPIC, STORED = "spark-live", 300
OF_LAKE = (*LAKE, "--run", "run-1", "--max-bad", "1")
ALL = {
    "ingest": ("--events", EVENTS, *LAKE, "--max-bad", "1"),
    "audit": OF_LAKE,
    **dict.fromkeys(("throughput", "latency", "imbalance", "backlog", "failover"), OF_LAKE),
    "compare": (*LAKE, "run-1", "run-1"),
    "report": ("--events", EVENTS, *LAKE, "--max-bad", "1"),
    "live": ("--topic", TOPIC, "--lake", "s3a://lake/live", "--keep", "--once"),
}
# They read results of the bench, and this checkout.
WITHOUT_SPARK = {"capacity", "pack"}
JOBS = [*ALL] if os.environ.get("TESTS_SPARK_JOBS") == "all" else ["ingest", "audit"]
LOGIN = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
# Code for rows so few takes longer than to do without.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.retry.limit": "5",
    "spark.hadoop.fs.s3a.attempts.maximum": "10",
}
# Jobs in turn in one session: each ends with a line of JSON, its exit code and what it said.
IN_TURN = """
import contextlib, io, json, runpy, sys
from spark.session import spark_session
import pyspark.sql
spark_session("tests")
pyspark.sql.SparkSession.stop = lambda self: None
for argv in json.loads(sys.argv[1]):
    sys.argv, said = argv, io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    print("job", json.dumps([code, said.getvalue()]), flush=True)
"""


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore().running() as made:
        yield made


def submitted(
    folder: Path, store: ObjectStore, master: str, jobs: list[list[str]], bus: dict[str, str]
) -> list[tuple[int, str]]:
    """Run jobs on a cluster with nothing of ours but the archive. Returns code and output of each.

    bus: environment of its clients.
    """
    pack(folder / "messagebus-spark.zip")
    (folder / "in_turn.py").write_text(IN_TURN)
    jars = ",".join(map(str, sorted(PACKAGES["s3a"].fetch().glob("*.jar"))))
    settings = SETTINGS | {
        "spark.hadoop.fs.s3a.endpoint": store.address,
        **{f"spark.executorEnv.{name}": text for name, text in (LOGIN | bus).items()},
    }
    here = Path(sys.executable).parent
    environ = (
        {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | LOGIN | bus
    )
    environ |= {"PATH": f"{here}:{environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
    argv = [
        *(str(here / "spark-submit"), "--master", master, "--driver-memory", "700m"),
        *("--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
        *("--jars", jars, "--py-files", str(folder / "messagebus-spark.zip")),
        *(word for name, text in settings.items() for word in ("--conf", f"{name}={text}")),
        *("in_turn.py", json.dumps(jobs), str(ROOT)),
    ]
    done = subprocess.run(
        argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    told = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("job ")]
    assert len(told) == len(jobs), f"{done.stdout[-2000:]}{done.stderr[-3000:]}"
    assert SECRET not in done.stdout + done.stderr
    return [(code, without_progress(said)) for code, said in told]


def job(name: str, *arguments: str, out: str = "") -> list[str]:
    folder = ROOT / "spark" if name == "live" else ROOT / "spark" / "jobs"
    return [str(folder / f"{name}.py"), *arguments, "--out", f"out/{out or name}"]


def test_two_workers_that_share_only_a_store_that_is_busy_and_lies_give_the_answers_of_one_machine(
    tmp_path: Path,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    assert {*ALL} == {*commands.commands} - WITHOUT_SPARK
    bus: dict[str, str] = {}
    if "live" in JOBS:
        bus = request.getfixturevalue("cluster").client_env()
        declare(BusConfig.from_env(bus), [Stream(TOPIC)])
        with Publisher(BusConfig.from_env(bus)) as publisher:
            publisher.send_many(TOPIC, [b"again"] * STORED)
    truth = write_run(tmp_path / "run", messages=200, faults=Faults(owed=3, cut_lines=1))
    for name, text in LOGIN.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.address)
    store.busy_every = 7
    uploads = Uploads(tmp_path / "run", EVENTS)
    eventually(uploads.upload, within_s=60)
    assert not [*(tmp_path / "run").glob("*.ndjson")]
    store.busy_every = 23
    # The listing by which Spark reads what it has just written.
    store.lying, store.lies = re.compile(rb"/published/date=[^/]*/[^/]*/[^/]*/part-0"), 1
    forbidden = job("ingest", "--events", EVENTS, "--lake", "s3a://forbidden/tables")
    wanted = [job(name, *ALL[name]) for name in JOBS]
    refused, lied, *answers = submitted(
        tmp_path, store, "local-cluster[2,1,1024]", [forbidden, wanted[0], *wanted], bus
    )
    assert refused[0] != 0
    assert len(refused[1].splitlines()) == 1
    assert "s3a://forbidden" in refused[1]
    assert (lied[0] != 0) == bool(len(lied[1].splitlines()) == 1), lied
    assert [code for code, _said in answers] == [0] * len(JOBS), answers
    audited = json.loads((tmp_path / "out" / "audit" / "audit.json").read_text())
    assert sum(row["deliveries"] for row in audited["subscriptions"]) == truth.deliveries
    if "live" in JOBS:
        assert f"read: {STORED} messages." in (tmp_path / "out" / "live" / "live.html").read_text()
    assert store.busy > 1
    assert store.lies == 0


def test_uploads_with_wrong_keys_keep_their_files_and_say_so_in_one_line(
    tmp_path: Path,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_run(tmp_path / "run", messages=20)
    files = sorted((tmp_path / "run").glob("*.ndjson"))
    for name, text in LOGIN.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.address)
    uploads = Uploads(tmp_path / "run", "s3a://forbidden/run-1")
    assert not uploads.upload()
    assert uploads.stats().waiting == len(files)
    (told,) = caplog.records
    assert "\n" not in told.getMessage()
    assert SECRET not in told.getMessage()
    assert sorted((tmp_path / "run").glob("*.ndjson")) == files
