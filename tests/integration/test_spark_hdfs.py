"""Events and a lake on a real HDFS: a name node and a data node in the JVM of the session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.clients.packages import PACKAGES
from tests.support.events import write_run
from tests.support.eventually import FACTOR

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(round(1800 * FACTOR))
INGESTED = """
import json, sys
from spark.jobs import audit
from spark.lake.ingest import ingest, ingested, plan
from spark.lake.places import place_of
from spark.lake.tables import Lake
from spark.measures.run import Run
from spark.session import QUICK, spark_session

folder, classes = sys.argv[1:]
session = spark_session("tests", **QUICK | {"spark.driver.extraClassPath": classes})
hadoop = session.sparkContext._jvm.org.apache.hadoop
conf = session.sparkContext._jsc.hadoopConfiguration()
conf.set("hdfs.minidfs.basedir", f"{folder}/hdfs")
cluster = hadoop.hdfs.MiniDFSCluster.Builder(conf).numDataNodes(1).build()
cluster.waitActive()
try:
    address = str(cluster.getURI())
    path = hadoop.fs.Path
    cluster.getFileSystem().copyFromLocalFile(path(f"file://{folder}/run"), path("/events"))
    lake, events = Lake(place_of(f"{address}/lake")), place_of(f"{address}/events")
    read = [len(ingest(session, lake, plan(events, lake)).read) for _ in range(2)]
    answer = audit.measure(Run(session, lake, ingested(lake, "run-1"), None))
    deliveries = sum(row["deliveries"] for row in answer.measured["subscriptions"])
    print("found", json.dumps([read, deliveries, list(answer.page.faults)]))
finally:
    cluster.shutdown()
"""


def test_a_run_on_hdfs_is_ingested_once_and_audited_from_a_lake_there(tmp_path: Path) -> None:
    truth = write_run(tmp_path / "run", messages=200)
    jars = ":".join(map(str, sorted(PACKAGES["hdfs"].fetch().glob("*.jar"))))
    done = subprocess.run(
        [sys.executable, "-c", INGESTED, str(tmp_path), jars],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1500 * FACTOR,
        check=False,
    )
    told = [line[6:] for line in done.stdout.splitlines() if line.startswith("found ")]
    assert told, done.stdout + done.stderr[-3_000:]
    read, deliveries, faults = json.loads(told[0])
    assert read == [8, 0]
    assert deliveries == truth.deliveries
    assert faults == []
