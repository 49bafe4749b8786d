"""One Spark session for all tests of the kit; named `session`, since `spark` is the package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.lake.ingest import ingest, plan
from spark.lake.tables import Lake
from spark.measures.run import Run
from spark.session import QUICK, spark_session
from tests.support.events import Faults, Truth, write_run


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
    }
    made = spark_session("tests", **(QUICK | settings))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def planted_run(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """A run with one of each fault in a set that is large against it."""
    faults = Faults(lost=1, altered=1, unexplained=1, swapped=1, orphans=1, cut_lines=1)
    folder = tmp_path_factory.mktemp("planted")
    truth = write_run(folder, messages=4_000, faults=faults)
    lake = Lake(tmp_path_factory.mktemp("lake"))
    return Planted(Run(session, lake, ingest(session, lake, plan(folder, lake))), truth, folder)
