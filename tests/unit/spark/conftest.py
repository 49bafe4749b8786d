"""One Spark session for all tests of the kit; named `session`, since `spark` is the package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.figures import generated_run
from spark.lake.ingest import ingest, ingested, plan
from spark.lake.tables import Lake
from spark.measures.run import Run
from spark.session import QUICK, spark_session
from tests.support.events import Faults, Truth, write_run

# For a JVM of hundreds of jobs: room for all their code, which is else dropped and compiled again; classes
# that are not verified; and a cheaper way to the `chmod` that Hadoop starts for each file and folder.
LONG_LIVED = (
    "-XX:ReservedCodeCacheSize=240m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-Djdk.lang.Process.launchMechanism=VFORK"
)


@dataclass(frozen=True)
class Planted:
    """A run with one of each fault, in a lake."""

    run: Run
    truth: Truth
    folder: Path


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    settings = {
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "1",
        # Code for some rows is compiled for longer than they take without: half of all the time. By
        # their names, in tests/integration/test_spark_jobs.py, jobs run compiled.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Else each expression is sent to the JVM with the line that made it.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.driver.extraJavaOptions": f"{QUICK['spark.driver.extraJavaOptions']} {LONG_LIVED}",
    }
    started = spark_session("tests", **(QUICK | settings))
    yield started
    started.stop()


@dataclass(frozen=True)
class Laid:
    """A run that was laid into a lake without Spark, with one of each fault."""

    run: Run
    planted: generated_run.Planted


@pytest.fixture(scope="session")
def laid(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Laid:
    folder = tmp_path_factory.mktemp("laid")
    planted = generated_run.lay(folder, 5_000)
    lake = Lake(folder)
    return Laid(Run(session, lake, ingested(lake, "made")), planted)


@pytest.fixture(scope="session")
def planted_run(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """A run with one of each fault in a set that is large against it."""
    faults = Faults(lost=1, altered=1, unexplained=1, swapped=1, orphans=1, cut_lines=1)
    folder = tmp_path_factory.mktemp("planted")
    truth = write_run(folder, messages=2_000, faults=faults)
    lake = Lake(tmp_path_factory.mktemp("lake"))
    return Planted(Run(session, lake, ingest(session, lake, plan(folder, lake))), truth, folder)
