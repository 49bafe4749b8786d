"""`python -m meters send`: publish readings; `python -m meters report`: fill the lake, and report on it."""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from pathlib import Path

from pyspark.sql import SparkSession

from messagebus import BusConfig, MessageBusError, Publisher
from messagebus.recording.recorder import Recorder
from meters.report import PUBLISHED, by_hour, fill, missing, once
from meters.send import send

ARCHIVE, LAKE, RUNS = "archive", "lake", "runs"


def publish(count: int) -> None:
    run = f"run-{uuid.uuid4().hex[:8]}"
    bus = BusConfig.from_env(os.environ)
    with Recorder(Path(RUNS, run), run_id=run) as recorder, Publisher(bus, hooks=[recorder]) as to:
        print(f"{send(to, count)} of {count} readings confirmed")


def report() -> None:
    """Print the energy of each hour and district, and what is wrong with the lake."""
    builder = SparkSession.builder.appName("meters").config("spark.sql.session.timeZone", "UTC")
    with builder.getOrCreate() as session:
        session.sparkContext.setLogLevel("ERROR")
        fill(session, ARCHIVE, LAKE)
        lake = session.read.parquet(f"{LAKE}/readings").cache()
        readings = once(lake).cache()
        published = session.read.schema(PUBLISHED).json(f"{RUNS}/*/published-*.ndjson")
        by_hour(readings).show(6)
        print(
            f"{readings.count()} readings in the lake, {missing(published, readings).count()} missing"
        )
        print(f"{lake.count() - readings.count()} copies were left out")
        print(f"{readings.filter('at IS NULL').count()} messages are no readings")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m meters", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sending = commands.add_parser("send", help="publish readings, and wait for their confirms")
    sending.add_argument("--count", type=int, default=10_000)
    commands.add_parser("report", help="fill the lake from the archive, and report on it")
    asked = parser.parse_args()
    try:
        publish(asked.count) if asked.command == "send" else report()
    except MessageBusError as fault:
        print(f"meters: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
