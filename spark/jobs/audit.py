"""The fate of every message: lost, doubled, altered, out of order, each with its id.

spark-submit spark/jobs/audit.py --events DIR --out DIR
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from pyspark.sql import DataFrame

from messagebus.terminal import plural
from reports.charts import Panel, Series, over_time
from reports.page import Bar, Bars, Figure, Part, Section, section_of
from reports.svg import COLOURS
from reports.text import Cell, cell, plain
from spark.command import Answer, exit_code, job_command
from spark.measures import audit, order
from spark.measures.faults import DoesNotAddUp, Fault, counted
from spark.measures.run import Run
from spark.measures.sift import Sifted, Unsifted, sifted
from spark.pages import (
    collected,
    marks_and_spans,
    page_of,
    since_s,
    subscription,
    window_for,
)

LATE = "late"
SUSPECTS_MAX = 200
SUBSCRIPTIONS_MAX = 40
# Verdicts on the whole run.
HOLDS, BROKEN = "The promise holds.", "The promise does not hold."
UNSHOWN = "Whether the promise holds was not shown."
# Index in COLOURS, as in the bars.
LOOKS = {
    **{"lost": 6, "altered": 5, "unexplained": 3, "explained": 1},
    **{"strange": 7, "unconfirmed": 4},
}

Rows: TypeAlias = list[dict[str, Any]]


def measure(run: Run, judged: Sifted | Unsifted | None = None) -> Answer:
    """Audit a run. judged: its messages; by default sifted here, and for a day those of its fates."""
    judged = judged or (Unsifted(run, run.fates()) if run.day else sifted(run))
    easy = collected(judged.counts())
    totals = _added(easy, collected(audit.totals(judged.fates)))
    found: dict[str, Any] = {
        "verdicts": _messages(totals, "verdict", audit.VERDICTS),
        "outcomes": _messages(totals, "outcome", audit.OUTCOME_ORDER),
        "subscriptions": [row for row in totals if row["of"] == "subscription"],
        "brokers": [row for row in totals if row["of"] == "broker"],
        "publishers": [row for row in totals if row["of"] == "publisher"],
        "order": _order(judged, easy),
        "late": [],
        "suspects": [],
        "repeats": [],
        "troubles": _troubles(run, judged),
        "window_s": _width(run),
    }
    if any(found["verdicts"][verdict] for verdict in audit.FAULTS):
        suspects = audit.suspects(judged.fates).orderBy("verdict", "message_id")
        found["suspects"] = collected(suspects.limit(SUSPECTS_MAX))
    if any(row[why] for row in totals for why in audit.REPEATS):
        found["repeats"] = collected(audit.repeats(judged.fates))
    late = run.keep(LATE, _late(run, judged))
    found["order"]["out_of_order"] = late.count()
    found["counts"] = _counts(run, found)
    found["late"] = collected(late.orderBy("message_id").limit(SUSPECTS_MAX))
    _check(run, found)
    return _answer(run, found)


def _late(run: Run, judged: Sifted | Unsifted) -> DataFrame:
    """Return `order.out_of_order` and `order.broken_keys`; for a day, those of that day."""
    late = judged.late()
    if not run.manifest.ordered:
        return late
    events = run.whole.events("published"), run.whole.events("delivered")
    broken = order.broken_keys(*events, run.manifest.ordered)
    return late.unionByName(broken.filter(broken["date"] == run.day) if run.day else broken)


def _counts(run: Run, measured: dict[str, Any]) -> dict[str, int]:
    """Return the counts of `events.FAULTS` that the audit itself finds, by name."""
    rows = measured["subscriptions"]
    counts = {name: sum(row[count] for row in rows) for name, count in audit.COUNTED.items()}
    counts |= {name: measured["verdicts"][name] for name in audit.JUDGED}
    pending = sum(row["pending"] for row in rows)
    counts["pending"] = pending if run.manifest.is_grace_too_long else 0
    return counts | {"late": measured["order"]["out_of_order"]}


def _width(run: Run) -> int:
    manifest = run.manifest
    return window_for(since_s(run, manifest.end_ns or manifest.start_ns))


def _troubles(run: Run, judged: Sifted | Unsifted) -> Rows:
    found = audit.over_time(judged.fates, run.manifest.start_ns, _width(run))
    rows = sorted(collected(found), key=lambda row: row["at"])
    return [row for row in rows if any(row[name] for name in audit.TROUBLES)]


def _added(one: Rows, other: Rows) -> Rows:
    """Add up two results of `audit.totals`."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in (*one, *other):
        dims = tuple(value for name, value in row.items() if name not in audit.COUNTS)
        if dims in found:
            row = row | {name: found[dims][name] + row[name] for name in audit.COUNTS}
        found[dims] = row
    return list(found.values())


def _order(judged: Sifted | Unsifted, easy: Rows) -> dict[str, int]:
    """Return ordered and left_out as `order.left_out`; every delivery of an easy message has an order."""
    [odd] = collected(order.left_out(judged.fates))
    ordered = sum(row["expected"] for row in easy if row["of"] == "subscription")
    return {"ordered": ordered + odd["ordered"], "left_out": odd["left_out"]}


def _messages(totals: Rows, column: str, known: Iterable[str]) -> dict[str, int]:
    """Return the messages with each verdict, or with each outcome."""
    counts = dict.fromkeys(known, 0)
    for row in totals:
        if row["of"] == "verdict" and row[column]:
            counts[row[column]] += row["messages"]
    return counts


def _check(run: Run, measured: dict[str, Any]) -> None:
    """Check that every delivery is in the audit. Raises DoesNotAddUp."""
    if run.day is not None:
        return  # a day is judged with rows of its neighbours
    deliveries = sum(row["deliveries"] for row in measured["subscriptions"])
    read = run.ingested.total("delivered", "good")
    if deliveries != read:
        raise DoesNotAddUp(f"{plural(deliveries, 'delivery')} judged of {read:,} good rows")


def _answer(run: Run, measured: dict[str, Any]) -> Answer:
    verdicts, late = measured["verdicts"], measured["order"]["out_of_order"]
    messages = sum(verdicts.values())
    faults: list[str] = [*counted(measured["counts"])]
    if not messages:
        faults.append(Fault("nothing", "nothing was published"))
    repeats = sum(row["repeats"] for row in measured["repeats"])
    unexplained = sum(r["repeats"] for r in measured["repeats"] if r["why"] == "unexplained")
    page = page_of(
        run,
        "audit",
        verdict=HOLDS,
        faults=tuple(faults),
        comment=f"Every one of {messages:,} messages has the fate that it should have.",
        figures=(
            Figure(cell(messages), "messages"),
            Figure(cell(verdicts["lost"]), "lost", "confirmed, not delivered"),
            Figure(cell(verdicts["altered"]), "altered", "by size and body hash"),
            Figure(cell(repeats), "delivered again", f"{unexplained:,} without explanation"),
            Figure(cell(late), "out of order", f"of {measured['order']['ordered']:,} judged"),
        ),
        sections=_sections(run, measured),
        words=WORDS,
        tables=("fates", "late") if run.day else ("odd_fates", "late"),
    )
    return Answer(measured, page, BROKEN, UNSHOWN)


def _sections(run: Run, measured: dict[str, Any]) -> tuple[Section, ...]:
    rows = measured["subscriptions"]
    verdicts = [{"verdict": plain(each), "messages": n} for each, n in measured["verdicts"].items()]
    return (
        Section(
            title="What became of them",
            note="Of each subscription: every message that it should have had, and what came besides.",
            bars=Bars(tuple(_fate_bar(row) for row in rows[:SUBSCRIPTIONS_MAX])),
        ),
        Section(
            title="When",
            note="What was not as it should be, by the second in which a message was meant to be sent.",
            chart=_over_time(run, measured),
        ),
        section_of("Fates of messages", verdicts, ("verdict", "messages")),
        section_of(
            "Subscriptions",
            rows,
            {"subscription": subscription, **{plain(key): key for key in PAIRS}},
        ),
        section_of("Delivered again, and why", measured["repeats"], REPEATED, left=3),
        section_of(
            "To be looked up",
            measured["suspects"],
            SUSPECT,
            left=len(SUSPECT) - 1,
            shown_max=SUSPECTS_MAX,
            note=f"The subscriptions in which a message is not as it should be, {SUSPECTS_MAX} at most.",
        ),
        section_of(
            "Out of order",
            [{key: str(row[key]) for key in ARRIVAL} for row in measured["late"]],
            ARRIVAL,
            left=len(ARRIVAL) - 2,
            shown_max=SUSPECTS_MAX,
        ),
    )


PAIRS = (
    *("expected", "delivered", "lost", "pending", "altered", "deliveries"),
    *("unconfirmed_delivered", "orphan_deliveries"),
)
REPEATED: dict[str, Cell] = {
    "broker": "broker",
    "subscription": subscription,
    "why": lambda row: plain(row["why"]),
    "repeats": "repeats",
}
SUSPECT = (
    *("verdict", "message_id", "topic", "subscription", "publisher"),
    *("broker", "first_broker", "deliveries"),
)
ARRIVAL = ("message_id", "subscription", "consumer", "broker", "publisher", "sequence", "after")


WORDS = {
    "lost": "a confirmed message that a subscription of its topic never received. The manifest names the "
    "subscriptions of each topic. A subscription that received nothing counts only if the manifest names "
    "it, because recorders learn of other subscriptions by their deliveries.",
    "pending": "confirmed within the grace before the end and not delivered yet. Such a message counts "
    "neither as delivered nor as lost.",
    "unconfirmed": "refused, unroutable, spooled or of unknown outcome. The audit counts how many of the "
    "last two were delivered. A spooled message that was not delivered may wait on its publisher's disk.",
    "again": "owed: the delivery before it by that broker was not acknowledged; acked without proof: its "
    "broker was killed soon after the ack, which AMQP does not confirm; unknown: the publish was sent "
    "more than once, so one more copy may be stored, which comes once; unexplained: none of these.",
    "out of order": "a first delivery whose sequence is below one that the same consumer already had, of "
    "the same publisher, key, broker and subscription. Messages that were sent more than once, "
    "redelivered messages, and messages of one instant are not judged. In subscriptions of partitioned "
    "topics also a first completion after that of a later publish of its key, by any publisher and any "
    "consumer.",
}


def _fate_bar(row: dict[str, Any]) -> Bar:
    explained = sum(row[why] for why in audit.REPEATS if why != "unexplained")
    parts = (
        Part("as published", max(0, row["delivered"] - row["altered"])),
        Part("pending", row["pending"], 2),
        Part("lost", row["lost"], "alarm"),
        Part("altered", row["altered"], 5),
        Part("again, explained", explained, 1),
        Part("again, unexplained", row["unexplained"], 3),
        Part("never published", row["orphan_deliveries"], 7),
        Part("not confirmed, and came", row["unconfirmed_delivered"], 4),
    )
    return Bar(subscription(row), parts, f"{row['delivered']:,} of {row['expected']:,}")


def _over_time(run: Run, measured: dict[str, Any]) -> str:
    rows, width = measured["troubles"], measured["window_s"]
    if not rows:
        return ""
    counted = {row["at"]: row for row in rows}
    ats = range(min(counted), max(counted) + 1, width)
    layers = [
        # Steps hold their value until the next point: one more point ends the last of them.
        Series(
            text,
            [*ats, ats[-1] + width],
            [*(counted[at][name] if at in counted else 0 for at in ats), 0],
            COLOURS[LOOKS[name]],
        )
        for name, text in audit.TROUBLES.items()
        if any(row[name] for row in rows)
    ]
    ends = since_s(run, run.manifest.end_ns or run.manifest.start_ns)
    each = "second" if width == 1 else f"{width} s"
    panel = Panel(f"not as it should be, each {each}", layers, "stack", height=2.4)
    return over_time([panel], until_s=max(ends, ats[-1] + width), **marks_and_spans(run))


command = job_command(
    "audit",
    "The fate of every message: lost, doubled, altered, out of order, unknown outcomes resolved.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="audit"))
