"""Faults, each by its name: the reasons why the verdict of a report fails.

The names and their words are those of `messagebus.recording.events.FAULTS`; docs/MEASURING.md has the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from messagebus.recording.events import FAULTS
from messagebus.recording.files import absent
from messagebus.terminal import plural
from reports.text import milliseconds
from spark.lake.ingest import Ingested
from spark.measures import gaps, latency, throughput
from spark.measures.run import Run

# Faults that break the promise that a confirmed message arrives; all others say that it was not shown.
PROMISE = tuple(FAULTS)[: tuple(FAULTS).index("pending")]
SHOWN_MAX = 5


class DoesNotAddUp(Exception):
    """Raised when an audit contradicts itself: a bug in the report, not in the run."""


class Fault(str):
    """A fault in words. name: of `FAULTS`; total: how many there are."""

    __slots__ = ("name", "total")
    name: str
    total: int

    def __new__(cls, name: str, text: str, count: int = 1) -> Self:
        made = super().__new__(cls, text)
        made.name, made.total = name, count
        return made


def counted(counts: Mapping[str, int]) -> list[Fault]:
    """Make a fault for each count that is not 0, in its words. counts: name -> count."""
    return [
        Fault(name, f"{counts[name]:,} {words}", counts[name])
        for name, words in FAULTS.items()
        if counts.get(name)
    ]


def missing_at_least(run: Run, seconds: DataFrame) -> int:
    """Return how many deliveries are missing at least, by counts alone; 0 for a day of a run.

    A message confirmed on a day may be delivered on the next. seconds: of `throughput.per_second`.

    Per subscription of the manifest: the confirmed messages of its topic that were owed by the end, less
    the deliveries. A repeat or a delivery within the grace hides one: `audit` looks at each message.
    """
    if run.day:
        return 0
    manifest = run.manifest
    until_ns = manifest.last_owed_ns
    owed = F.lit(True)
    if until_ns is not None:
        owed = F.col("second") < (until_ns - manifest.start_ns) // throughput.SECOND_NS
    counted = seconds.filter((F.col("kind") == throughput.DELIVERED) | owed)
    counts = {
        (row["kind"], row["topic"], row["subscription"]): row["messages"]
        for row in counted.groupBy("kind", "topic", "subscription")
        .agg(F.sum("messages").alias("messages"))
        .collect()
    }
    missing = (
        counts.get((throughput.CONFIRMED, topic, ""), 0)
        - counts.get((throughput.DELIVERED, topic, subscription), 0)
        for topic, subscription in manifest.pairs
    )
    return sum(max(0, each) for each in missing)


def lost_at_least(missing: int) -> list[Fault]:
    """Return the fault of deliveries that never came, in its words."""
    words = f"at least {missing:,} {FAULTS['lost']}; `spark audit` names them"
    return [Fault("lost", words, missing)] if missing else []


def standing(faults: Iterable[str], allow: Collection[str]) -> list[str]:
    """Return the faults that are not allowed. A fault without a name cannot be allowed."""
    return [fault for fault in faults if getattr(fault, "name", None) not in allow]


def allowed(faults: Iterable[str], allow: Collection[str]) -> list[str]:
    """Put the allowed faults into words."""
    found = [fault for fault in faults if getattr(fault, "name", None) in allow]
    return [f"Allowed: {'; '.join(found)}."] if found else []


def bad_faults(ingested: Ingested, bad_max: int) -> list[Fault]:
    """Find faults of the record itself: rows that are missing from every number."""
    manifest = ingested.manifest
    faults = [
        Fault("unread", f"{name} cannot be read: its rows are in no number")
        for name in ingested.missing
    ]
    faults += _named("absent", absent([*ingested.files, *(name for name, _ in ingested.skipped)]))
    if ingested.bad > bad_max:
        lines = "line" if ingested.bad == 1 else "lines"
        faults.append(
            Fault("bad", f"{ingested.bad:,} bad {lines}, {bad_max:,} allowed", ingested.bad)
        )
    recorders = manifest.recorders.values()
    shares = sorted({one.share for one in recorders})
    faults += counted(
        {
            "dropped": sum(one.dropped for one in recorders),
            "deleted": sum(one.files_deleted for one in recorders),
        }
    )
    if len(shares) > 1:
        told = " and ".join(f"{share:.3g}" for share in shares)
        text = f"recorders took unlike shares of the messages: {told}"
        faults.append(Fault("shares", text, len(recorders)))
    if not manifest.complete:
        text = "the run did not end in order: what it has is counted, and no more"
        faults.append(Fault("incomplete", text))
    return faults


def of_publishes(run: Run) -> list[Fault]:
    """Find publishes without a confirm, publishers without publishes, and messages for nobody."""
    manifest = run.manifest
    rows = run.outcomes
    confirmed = [row for row in rows if row["outcome"] == "confirmed"]
    if not rows:
        return [Fault("nothing", "nothing was published")]
    without = _sums(row for row in rows if row["outcome"] != "confirmed")
    faults = []
    if not confirmed:
        faults.append(Fault("nothing", "nothing was confirmed"))
    if without:
        every = sum(row["n"] for row in rows)
        faults.append(_unconfirmed(without, every, _silence(run)))
    unjudged = sum(row["n"] for row in confirmed if not manifest.topics.get(row["topic"]))
    faults += counted({"unjudged": unjudged})
    faults += _missing(run)
    if run.day is None:
        wrote = {row["publisher"] for row in rows}
        faults += _named("silent", [name for name in manifest.publishers if name not in wrote])
    strange = [row for row in confirmed if row["broker"] not in manifest.brokers]
    if manifest.brokers and strange:
        faults.append(_unlisted(strange))
    return faults


def _unlisted(rows: Sequence[Any]) -> Fault:
    """Return the fault of these confirms, of brokers that the run does not list."""
    count = sum(row["n"] for row in rows)
    names = _some(sorted({row["broker"] for row in rows}))
    return Fault("unlisted", f"{count:,} {FAULTS['unlisted']}: {names}", count)


def _unconfirmed(without: Mapping[str, int], every: int, silence: str) -> Fault:
    """Return the fault of publishes without a confirm. without: outcome -> number; every: of all."""
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(without.items()))
    total = sum(without.values())
    text = f"{total:,} of {every:,} {FAULTS['unconfirmed']} ({told}){silence}"
    return Fault("unconfirmed", text, total)


def _missing(run: Run) -> list[Fault]:
    """Find publishes without a row: numbers of a publisher that are absent between its others.

    Those of rows that were dropped, and of lines that are not understood, are known already. Cost: one pass
    over two columns; bits instead of numbers are brought together.
    """
    number = F.col("sequence")
    pieces = (
        run.events("published")
        .groupBy("publisher", F.bitmap_bucket_number(number).alias("piece"))
        .agg(
            F.min(number).alias("low"),
            F.max(number).alias("high"),
            F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position(number))).alias("n"),
        )
    )
    holes = pieces.groupBy("publisher").agg(
        (F.max("high") - F.min("low") + 1 - F.sum("n")).alias("missing")
    )
    found = {row["publisher"]: row["missing"] for row in holes.collect() if row["missing"]}
    known = sum(one.dropped for one in run.manifest.recorders.values()) + run.ingested.bad
    if (count := sum(found.values()) - known) <= 0:
        return []
    told = _some([f"{n:,} of {name}" for name, n in sorted(found.items())])
    return [Fault("missing", f"{count:,} {FAULTS['missing']}: {told}", count)]


def unconfirmed(run: Run) -> dict[str, int]:
    """Return outcome -> publishes that ended in it, without confirmed ones."""
    return _sums(row for row in run.outcomes if row["outcome"] != "confirmed")


def notes_of(ingested: Ingested) -> list[str]:
    """Return notes on gaps of the record that are no fault, for the first line of every page."""
    manifest, told = ingested.manifest, []
    if manifest.share < 1:
        told.append(
            f"A sample of {manifest.share:.3g} of the messages: every count is of the sample."
        )
    if ingested.clocks > 1:
        told.append(
            f"Times by {ingested.clocks:,} clocks: those from a publisher to a consumer are off by what "
            "these differ."
        )
    if quiet := [f"{topic}/{name}" for topic, name in ingested.quiet]:
        told.append(f"Nothing was received by {_some(quiet)}.")
    return told


def _silence(run: Run) -> str:
    """Return the longest silence of a publisher in words, so that every outage has its length on the page."""
    found = gaps.longest(
        run.events("published"),
        ["publisher"],
        start="intended_ns",
        end="confirmed_ns",
        until_ns=run.until_ns,
    )
    row = found.orderBy(F.col("gap_ns").desc()).first()
    if row is None:
        return ""
    began_s = (row.until_ns - row.gap_ns - run.manifest.start_ns) / 1e9
    return f"; the longest silence of a publisher lasted {row.gap_ns / 1e9:,.2f} s, from {began_s:,.1f} s on"


def clocks(
    names: Mapping[str, str], below: Mapping[str, Mapping[str, int]], ingested: Ingested
) -> list[Fault]:
    """Return faults of samples that show that clocks differ or went back.

    names: measure -> in words; below: counts of `latency.below`, with hidden: figures that are not given
    because of it.
    """
    faults = []
    for measure, row in below.items():
        count, error_ms = row["backwards"], row["error_ns"] / 1e6
        one_clock = measure in latency.ONE_CLOCK or ingested.clocks == 1
        if count and one_clock:
            text = f"{plural(count, 'sample')} of {names[measure]} below zero: a clock went back"
            faults.append(Fault("clocks", text, count))
        elif row["hidden"]:
            text = (
                f"{names[measure]} is not given: clocks differ by {milliseconds(error_ms)} or more "
                f"({plural(count, 'sample')} below zero)"
            )
            faults.append(Fault("clocks", text, max(1, count)))
    return faults


def _sums(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row["outcome"]] = found.get(row["outcome"], 0) + row["n"]
    return found


def _named(name: str, who: Sequence[str]) -> list[Fault]:
    if not who:
        return []
    return [Fault(name, f"{len(who):,} {FAULTS[name]}: {_some(who)}", len(who))]


def _some(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN_MAX
    return ", ".join(names[:SHOWN_MAX]) + (f" and {rest:,} more" if rest > 0 else "")
