"""The only place that makes a Spark session. Options of spark-submit win over the settings here."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

# The checkout, or the archive of `spark.pack`.
ROOT = Path(__file__).resolve().parent.parent
_OPEN = ExitStack()
atexit.register(_OPEN.close)

# May be set on a running session.
SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # Else every row is sorted by its partition before it is written.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
}
# Must be set before the JVM starts, so not under spark-submit, which owns these.
LOG4J = "-Dlog4j2.configurationFile={}".format(
    _OPEN.enter_context(as_file(files("spark") / "log4j2.properties"))
)
LOCAL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "4g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": LOG4J,
}
# For inputs that are done before the JVM's better compiler, adaptive plans or more partitions would
# pay: a third less CPU on 70 MB of events, start included. On large ones it would cost.
QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": f"{LOG4J} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-Xms768m -Xmn512m",
}


class JavaMissing(Exception):
    """Raised when no Java can be started, or PySpark is a client of Spark Connect; says what to do."""


# What makes PySpark a client of Spark Connect.
CONNECT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


def java_path(environ: Mapping[str, str]) -> str | None:
    """Return the java that Spark would start: JAVA_HOME's, else that of PATH; None when there is none."""
    if home := environ.get("JAVA_HOME"):
        return shutil.which("java", path=str(Path(home) / "bin"))
    return shutil.which("java", path=environ.get("PATH"))


def spark_session(app: str, **local: str) -> SparkSession:
    """Make or find the session.

    local: settings that beat `LOCAL` and `SQL`; under spark-submit those of SQL alone, and only where
        its command line sets nothing.
    Raises JavaMissing. Cost: 4 to 5 s for the first one of a process.
    """
    if client := next(filter(os.environ.get, CONNECT), None):
        raise JavaMissing(
            f"{client} is set: jobs call the JVM of their driver, and with Spark Connect there is none; "
            "unset it, and use spark-submit --master"
        )
    # Python workers are otherwise `python3` of PATH, which lacks our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._active_spark_context is None:
        _start(app, LOCAL | local)
    session = SparkSession.builder.appName(app).getOrCreate()
    given = session.sparkContext.getConf()
    sql = {key: value for key, value in local.items() if key.startswith("spark.sql.")}
    for key, value in (SQL | sql).items():
        if not given.contains(key):
            session.conf.set(key, value)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _start(app: str, settings: Mapping[str, str]) -> None:
    conf = SparkConf().setAppName(app).set("spark.executorEnv.PYTHONPATH", str(ROOT))
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Started by spark-submit: SparkConf() is empty here until the context exists, and whatever is
        # set now beats the command line.
        SparkContext(conf=conf.set("spark.log.level", "ERROR"))
        return
    if java_path(os.environ) is None:
        raise JavaMissing(
            "no Java found: install openjdk-17-jre-headless (apt-get install openjdk-17-jre-headless) "
            "or set JAVA_HOME"
        )
    for key, value in settings.items():
        conf.set(key, value)
    SparkContext(conf=conf, gateway=_launched(conf))


@contextmanager
def _signals_afterwards() -> Iterator[None]:
    """Delay SIGINT and SIGTERM in here to the end of it.

    A JVM that is not waited for at its start finds nobody to report its port to, and stays for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) not in (None, signal.SIG_IGN)
    ]
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in heard}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)


def _launched(conf: SparkConf) -> Any:
    launch: Any = launch_gateway  # it has no types
    # The JVM's own standard error has notices of its start, and, if it does not start, the reason.
    with tempfile.TemporaryFile("w+") as notices:
        try:
            with _signals_afterwards():
                return launch(conf, {"stderr": notices})
        except PySparkRuntimeError as fault:
            notices.seek(0)
            said = [line.strip() for line in notices if not line.startswith("WARNING")]
            raise JavaMissing(
                f"{java_path(os.environ)} did not start (17 or later wanted): {' '.join(said)}"
            ) from fault
