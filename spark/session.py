"""The one way to make a Spark session. What spark-submit was given wins over what is written here."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

__all__ = ["QUICK", "JavaMissing", "java_path", "spark_session"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

# May be set on a running session.
SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "4",
}
# Must be set before the JVM starts, so not under spark-submit, which owns these.
LOG4J = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
LOCAL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": LOG4J,
}
# For inputs that are through before the JVM's better compiler, adaptive plans or more partitions would
# pay: a third less CPU on 70 MB of events, start included. On large ones it would cost.
QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": f"{LOG4J} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class JavaMissing(Exception):
    """Raised when no Java can be started; says which package brings it."""


def java_path(environ: Mapping[str, str]) -> str | None:
    """The java that Spark would start: JAVA_HOME's, else that of PATH; None when there is none."""
    if home := environ.get("JAVA_HOME"):
        return shutil.which("java", path=str(Path(home) / "bin"))
    return shutil.which("java", path=environ.get("PATH"))


def spark_session(app: str, **local: str) -> SparkSession:
    """Make or find the session.

    local: static settings that beat `LOCAL`; without effect under spark-submit.
    Raises JavaMissing. Cost: 4 to 5 s for the first one of a process.
    """
    # Python workers are otherwise `python3` of PATH, which lacks our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._active_spark_context is None:
        _start(app, LOCAL | local)
    session = SparkSession.builder.appName(app).getOrCreate()
    given = session.sparkContext.getConf()
    for key, value in SQL.items():
        if not given.contains(key):
            session.conf.set(key, value)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _start(app: str, settings: Mapping[str, str]) -> None:
    conf = SparkConf().setAppName(app).set("spark.executorEnv.PYTHONPATH", str(ROOT))
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Started by spark-submit: SparkConf() is empty here until the context exists, and whatever
        # were set now would beat the command line.
        SparkContext(conf=conf)
        return
    if java_path(os.environ) is None:
        raise JavaMissing(
            "no Java found: install openjdk-17-jre-headless (apt-get install openjdk-17-jre-headless) "
            "or set JAVA_HOME"
        )
    for key, value in settings.items():
        conf.set(key, value)
    try:
        # The JVM's own standard error holds start-up notices only; what fails is raised here.
        with Path(os.devnull).open("w") as nowhere:
            gateway = launch_gateway(conf, {"stderr": nowhere})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as fault:
        raise JavaMissing(
            f"Java did not start: {java_path(os.environ)}; it must be 17 or later"
        ) from fault
    SparkContext(conf=conf, gateway=gateway)
