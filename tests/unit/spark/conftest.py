"""One Spark session for all tests of the kit; named `session`, since `spark` is the package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.session import QUICK, spark_session


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    settings = {
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "1",
    }
    made = spark_session("tests", **(QUICK | settings))
    yield made
    made.stop()
