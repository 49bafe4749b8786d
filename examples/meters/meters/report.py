"""The report: the archive's new files go into the lake, and the lake is compared with what was confirmed.

Every function but `fill` takes and returns rows, on no disk.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["by_hour", "fill", "missing", "of_archive", "once"]

# Lines of `messagebus to-file`, and of its bodies: docs/reference/commands.md has all fields.
ENVELOPE = "id string, time_ms long, body string"
READING = "meter string, district string, at timestamp, kwh double"
# Rows of the recorder of the publishers: messagebus/recording/events.py has all columns.
PUBLISHED = "message_id string, topic string, outcome string"


def fill(session: SparkSession, archive: str, lake: str) -> None:
    """Append the files of the archive that the lake does not have. Each goes in once, whatever is killed."""
    lines = session.readStream.schema(ENVELOPE).option("pathGlobFilter", "*.gz").json(archive)
    written = of_archive(lines).writeStream.partitionBy("date")
    checked = written.option("checkpointLocation", f"{lake}/checkpoint").trigger(availableNow=True)
    checked.start(f"{lake}/readings", format="parquet").awaitTermination()


def of_archive(lines: DataFrame) -> DataFrame:
    """Return the id, date, meter, district, at and kwh of each line; nulls where its body is no reading."""
    parsed = lines.select("id", F.from_json("body", READING).alias("reading"))
    return parsed.select("id", F.to_date("reading.at").alias("date"), "reading.*")


def once(readings: DataFrame) -> DataFrame:
    """Return each reading once: delivery, and therefore the archive, is at least once."""
    return readings.dropDuplicates(["id"])


def by_hour(readings: DataFrame) -> DataFrame:
    """Return hour, district, kwh and the number of meters, for readings without copies."""
    hour = F.date_trunc("hour", F.col("at") - F.expr("INTERVAL 1 SECOND")).alias("hour")
    sums = (F.round(F.sum("kwh"), 3).alias("kwh"), F.countDistinct("meter").alias("meters"))
    return readings.groupBy(hour, "district").agg(*sums).orderBy("hour", "district")


def missing(published: DataFrame, readings: DataFrame) -> DataFrame:
    """Return the ids of readings that a broker has confirmed, and that the lake does not have."""
    confirmed = published.filter("topic = 'readings' AND outcome = 'confirmed'")
    ids = confirmed.select(F.col("message_id").alias("id"))
    return ids.join(readings, "id", "left_anti")
