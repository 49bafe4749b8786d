"""The fates of a run in the lake, made anew for those days alone that new events can have changed.

A message is kept on the day of its publish. Its fate changes with rows of its own only, by its id, so these
days are made anew:

- those of rows of files that were read since, and those of kept fates with an id of these rows
- of files whose earlier rows are gone: their days, and the days of messages that have a row on these
- where the end of what was owed moved: those with a message that is missing and was confirmed behind it
- where a kill was added or removed: those of repeats that it may explain

The ids of a client are ten bytes of its process and a number that rises, so the ids of a day are a few spans,
which are noted. Rows of kept fates are searched on days alone whose spans have an id of the new rows. A day
with too many spans, such as one of random ids, is always searched.

For a day all rows of its messages are read: it is kept for each day on which other days those are. A row of
another day's message that is read with them is of no fate here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from messagebus.recording.manifest import Manifest
from spark.lake.events import schema_of
from spark.lake.ingest import Ingested
from spark.lake.tables import DATE, RUN, SOURCE, Lake, partitions_of
from spark.measures import audit

FATES = "fates"
SCHEMA = f"{audit.FATES}, {RUN} string"
# Version of the rules of `audit.fates`; with other rules all fates are made again.
RULES = 3
KINDS = ("published", "delivered")
# Bytes of an id that are those of its process; the others are its number there.
PROCESS_BYTES, NUMBER_BYTES, HEX = 10, 6, 16
# New rows are compared by pieces of 2**16 numbers: one old message among them means its own day alone.
PIECE_BITS = 16
# Spans that are noted of a day, or compared with those.
SPANS_MAX = 4096
# Rows of new files whose ids fit into every task as a hash table.
BROADCAST_MAX = 4_000_000
SECOND_NS = 1_000_000_000
NO_PARTIAL = "spark.sql.execution.bypassPartialAggregation"

# What is noted of a day: the first and the last day with a row of its messages; the latest confirm of one
# that is missing, 0 for none; whether any came again; the first and the last number of each process' ids.
Days: TypeAlias = Mapping[str, Mapping[str, Any]]


def refresh_fates(session: SparkSession, lake: Lake, ingested: Ingested) -> None:
    """Bring the kept fates of a run up to its events and its manifest."""
    manifest, noted = ingested.manifest, lake.note(ingested.manifest.run_id, FATES)
    run_id = manifest.run_id
    files = _files(lake, ingested, noted.get("files", {}))
    now: dict[str, Any] = {
        "rules": _digest([RULES, manifest.pairs, sorted(manifest.topics)]),
        "owed_ns": manifest.last_owed_ns,
        "kills": [list(each) for each in manifest.kills],
        "files": files,
    }
    if all(noted.get(name) == value for name, value in now.items()):
        return
    every = sorted({day for _, days in files.values() for day in days})
    is_known = noted.get("rules") == now["rules"]
    kept: Days = noted["days"] if is_known else {}
    days = _touched(session, lake, ingested, noted, now) if is_known else set(every)
    if days:
        # Until it ends, these days are neither as they were nor as they will be.
        lake.take_note(run_id, FATES, noted | {"making": sorted(days)})
        replaces = _partitions(run_id, days if is_known else "*")
        _make(session, lake, manifest, days, _read_with(days, kept, every), replaces)
    rest = {day: about for day, about in kept.items() if day not in days}
    lake.take_note(run_id, FATES, now | {"days": rest | _about(session, lake, run_id, days)})


def around(lake: Lake, run_id: str, day: str) -> list[str]:
    """Return the days of kept fates with all messages that a delivery of this day can be behind, in order.

    Numbers of a publisher rise: these are from the day of the oldest message that came on this day.
    """
    kept: Days = lake.note(run_id, FATES)["days"]
    beside = _sharing([day], kept)
    return [each for each in sorted(kept) if beside and min(beside) <= each <= max(beside)]


def _files(lake: Lake, ingested: Ingested, noted: Mapping[str, Any]) -> dict[str, Any]:
    """Return source -> what it is read as, and the days of its rows."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        read_as = {
            source: f"{file['sha256']} {file.get('offset_ns')}"
            for source, file in ingested.files.items()
            if file["kind"] == kind
        }
        new = [source for source, each in read_as.items() if noted.get(source, [""])[0] != each]
        days = lake.days_of(ingested.manifest.run_id, kind, new)
        found |= {source: noted.get(source) for source in read_as}
        found |= {source: [read_as[source], days[source]] for source in new}
    return found


def _touched(
    session: SparkSession,
    lake: Lake,
    ingested: Ingested,
    noted: Mapping[str, Any],
    now: Mapping[str, Any],
) -> set[str]:
    """Return the days whose fates may be others than those that are kept."""
    kept: Days = noted["days"]
    before, files = noted["files"], now["files"]
    changed = {name for name in (*before, *files) if before.get(name) != files.get(name)}
    gone = {day for name in changed for day in before.get(name, ("", ()))[1]}
    new = {day for name in changed for day in files.get(name, ("", ()))[1]}
    touched = {*noted.get("making", ()), *new, *gone, *_sharing(gone, kept)}
    # Where a publish is gone, its message may be kept on the day of a delivery.
    every = {day for _, days in (*before.values(), *files.values()) for day in days}
    touched |= {*_read_with(gone, kept, every)}
    others = {day: about for day, about in kept.items() if day not in touched}
    touched |= _with_ids_of(session, lake, ingested, changed & {*files}, others)
    if noted["owed_ns"] != now["owed_ns"]:
        since_ns = min(ns for ns in (noted["owed_ns"], now["owed_ns"]) if ns is not None)
        touched |= {day for day, about in kept.items() if about["missing_ns"] > since_ns}
    for kill in (*noted["kills"], *now["kills"]):
        if (kill in noted["kills"]) != (kill in now["kills"]):
            touched |= _repeating(kept, _day(kill[1]), _day(kill[1] + audit.KILL_NOTICED_NS))
    return touched


def _repeating(kept: Days, first: str, last: str) -> set[str]:
    """Return the days with repeated deliveries, of messages with a row between these two days."""
    return {
        day
        for day, about in kept.items()
        if about["repeats"] and about["since"] <= last and about["until"] >= first
    }


def _sharing(days: Collection[str], kept: Days) -> set[str]:
    """Return the days with a message that has a row on one of these days."""
    return {
        day
        for day, about in kept.items()
        if any(about["since"] <= each <= about["until"] for each in days)
    }


def _read_with(days: Collection[str], kept: Days, every: Iterable[str]) -> list[str]:
    """Return the days with the rows of all messages of these days, and of those that have a row on them."""
    spans = [kept[day] for day in days if day in kept]
    beside = {*days, *_sharing(days, kept)}
    return [
        day
        for day in every
        if day in beside or any(each["since"] <= day <= each["until"] for each in spans)
    ]


def _with_ids_of(
    session: SparkSession, lake: Lake, ingested: Ingested, sources: Collection[str], kept: Days
) -> set[str]:
    """Return the days of kept fates with an id of the rows of these files.

    Cost: reads one column of these files, and of the fates of the days whose spans have such an id.
    """
    run_id = ingested.manifest.run_id
    ids = [
        lake.read(session, kind, schema_of(kind), *partitions_of(run_id, own))
        .filter(F.col(SOURCE).isin(own))
        .select("message_id")
        for kind in KINDS
        if (own := sorted(name for name in sources if ingested.files[name]["kind"] == kind))
    ]
    if not ids or not kept:
        return set()
    asked = reduce(DataFrame.union, ids)
    days = _meeting(asked, kept)
    if not days:
        return set()
    messages = asked.select(_message()).distinct()
    if sum(int(ingested.files[name]["good"]) for name in sources) <= BROADCAST_MAX:
        messages = F.broadcast(messages)
    fates = lake.read(session, FATES, SCHEMA, *_partitions(run_id, days))
    had = fates.select(DATE, _message())
    rows = had.join(messages, "message", "left_semi").select(DATE).distinct().collect()
    return {row[DATE] for row in rows}


def _meeting(ids: DataFrame, kept: Days) -> list[str]:
    """Return the days that may have one of these ids, by their spans."""
    if all(about.get("ids") is None for about in kept.values()):
        return sorted(kept)
    spans = _spans(ids, bits=PIECE_BITS).limit(SPANS_MAX + 1).collect()
    if len(spans) > SPANS_MAX:
        return sorted(kept)
    return sorted(
        day
        for day, about in kept.items()
        if about.get("ids") is None or any(_has(about["ids"], span) for span in spans)
    )


def _has(ids: Mapping[str, Sequence[int]], span: Row) -> bool:
    low, high = ids.get(span.process, (1, 0))
    return bool(span.low <= high and span.high >= low)


def _spans(rows: DataFrame, *by: str, bits: int) -> DataFrame:
    """Return process, low, high: the first and the last of each 2**bits numbers of a process' ids."""
    # Numbers, for a minimum of bytes would be made by sorting.
    number = F.conv(F.hex(F.substring("message_id", PROCESS_BYTES + 1, NUMBER_BYTES)), HEX, 10)
    own = rows.select(*by, _process(), number.cast("long").alias("number"))
    piece = F.shiftright("number", bits).alias("piece")
    return own.groupBy(*by, "process", piece).agg(
        F.min("number").alias("low"), F.max("number").alias("high")
    )


def _process() -> Column:
    return F.hex(F.substring("message_id", 1, PROCESS_BYTES)).alias("process")


def _message() -> Column:
    return F.xxhash64("message_id").alias("message")


def _make(
    session: SparkSession,
    lake: Lake,
    manifest: Manifest,
    days: Collection[str],
    read: Iterable[str],
    replaces: Sequence[str],
) -> None:
    run_id = manifest.run_id
    # Settings belong to a session. Ids hardly ever repeat, so in this one group-by a partial aggregation
    # before the shuffle only costs, 10 to 25 % of its CPU.
    own = session.newSession()
    own.conf.set(NO_PARTIAL, "true")
    published, delivered = (
        lake.read(own, kind, schema_of(kind), *_partitions(run_id, read)) for kind in KINDS
    )
    fates = audit.fates(published, delivered, manifest).filter(F.col(DATE).isin(sorted(days)))
    rows = fates.withColumn(RUN, F.lit(run_id))
    lake.write(FATES, rows, by=(DATE, RUN), replaces=replaces)


def _about(
    session: SparkSession, lake: Lake, run_id: str, days: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return what is noted of each of these days that has fates."""
    if not days:
        return {}
    rows = lake.read(session, FATES, SCHEMA, *_partitions(run_id, days))
    missing = F.when(F.col("lost") | F.col("pending"), F.col("confirmed_ns"))
    found = rows.groupBy(DATE).agg(
        F.min("since").alias("since"),
        F.max("until").alias("until"),
        F.coalesce(F.max(missing), F.lit(0)).alias("missing_ns"),
        F.coalesce(F.max(F.size("repeats") > 0), F.lit(False)).alias("repeats"),
        F.approx_count_distinct(_process()).alias("processes"),
    )
    about = {(each := row.asDict()).pop(DATE): each for row in found.collect()}
    few = [day for day, each in about.items() if each.pop("processes") <= SPANS_MAX]
    for day in few:
        about[day]["ids"] = {}
    own = rows.filter(F.col(DATE).isin(few))
    for row in _spans(own, DATE, bits=8 * NUMBER_BYTES).collect() if few else ():
        about[row[DATE]]["ids"][row.process] = [row.low, row.high]
    return about


def _partitions(run_id: str, days: Iterable[str]) -> list[str]:
    return [f"{DATE}={day}/{RUN}={run_id}" for day in sorted(days)]


def _day(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns // SECOND_NS, UTC):%Y-%m-%d}"


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
