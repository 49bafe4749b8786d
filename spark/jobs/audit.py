"""The fate of every message: lost, doubled, altered, out of order, each with its id.

spark-submit spark/jobs/audit.py --events DIR --out DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeAlias

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from messagebus.terminal import plural
from spark.command import Answer, exit_code, job_command
from spark.measures import audit, order
from spark.measures.faults import Fault, counted
from spark.measures.run import Run
from spark.measures.sift import Sifted, sifted
from spark.page import words
from spark.page.charts import Panel, Series, over_time
from spark.page.drawing import COLOURS
from spark.page.page import Bar, Bars, Figure, Page, Part, Section, Table, table_of
from spark.page.summary import DoesNotAddUp

__all__ = ["command", "measure"]

LATE = "late"
SUSPECTS_MAX = 200
SUBSCRIPTIONS_MAX = 40
# Index in COLOURS, as in the bars.
LOOKS = {
    **{"lost": 6, "altered": 5, "unexplained": 3, "explained": 1},
    **{"strange": 7, "unconfirmed": 4},
}

Rows: TypeAlias = list[dict[str, Any]]


def measure(run: Run) -> Answer:
    judged = sifted(run)
    plain = words.collected(judged.counts())
    totals = _added(plain, words.collected(audit.totals(judged.fates)))
    found: dict[str, Any] = {
        "verdicts": _verdicts(totals),
        "subscriptions": [row for row in totals if row["of"] == "subscription"],
        "brokers": [row for row in totals if row["of"] == "broker"],
        "publishers": [row for row in totals if row["of"] == "publisher"],
        "order": _order(judged, plain),
        "late": [],
        "suspects": [],
        "repeats": [],
        "troubles": _troubles(run, judged),
        "window_s": _width(run),
    }
    if any(found["verdicts"][verdict] for verdict in audit.FAULTS):
        suspects = audit.suspects(judged.fates).orderBy("verdict", "message_id")
        found["suspects"] = words.collected(suspects.limit(SUSPECTS_MAX))
    if any(row[why] for row in totals for why in audit.REPEATS):
        found["repeats"] = words.collected(audit.repeats(judged.fates))
    late = run.keep(LATE, judged.late())
    found["order"]["out_of_order"] = late.count()
    found["counts"] = _counts(run, found)
    found["late"] = words.collected(late.orderBy("message_id").limit(SUSPECTS_MAX))
    _check(run, found)
    return Answer(found, _page(run, found))


def _counts(run: Run, found: dict[str, Any]) -> dict[str, int]:
    """Return the counts of `events.FAULTS` that the audit itself finds, by name."""
    rows = found["subscriptions"]
    counts = {name: sum(row[count] for row in rows) for name, count in audit.COUNTED.items()}
    counts |= {name: found["verdicts"][name] for name in audit.JUDGED}
    pending = sum(row["pending"] for row in rows)
    counts["pending"] = pending if run.manifest.is_grace_too_long else 0
    return counts | {"late": found["order"]["out_of_order"]}


def _width(run: Run) -> int:
    manifest = run.manifest
    return words.window_for(words.since_s(run, manifest.end_ns or manifest.start_ns))


def _troubles(run: Run, judged: Sifted) -> Rows:
    found = audit.over_time(judged.fates, run.manifest.start_ns, _width(run))
    rows = sorted(words.collected(found), key=lambda row: row["at"])
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


def _order(judged: Sifted, plain: Rows) -> dict[str, int]:
    """Return ordered and left_out as `order.left_out`; every delivery of a plain message has an order."""
    [odd] = words.collected(order.left_out(judged.fates))
    ordered = sum(row["expected"] for row in plain if row["of"] == "subscription")
    return {"ordered": ordered + odd["ordered"], "left_out": odd["left_out"]}


def _verdicts(totals: list[dict[str, Any]]) -> dict[str, int]:
    verdicts = dict.fromkeys(audit.VERDICTS, 0)
    for row in totals:
        if row["of"] == "verdict":
            verdicts[row["verdict"]] += row["messages"]
    return verdicts


def _check(run: Run, found: dict[str, Any]) -> None:
    """Check that every delivery is in the audit. Raises DoesNotAddUp."""
    if run.day is not None:
        return  # a day is judged with rows of its neighbours
    deliveries = sum(row["deliveries"] for row in found["subscriptions"])
    read = run.ingested.total("delivered", "good")
    if deliveries != read:
        raise DoesNotAddUp(f"{plural(deliveries, 'delivery')} judged of {read:,} good rows")


def _page(run: Run, found: dict[str, Any]) -> Page:
    verdicts, late = found["verdicts"], found["order"]["out_of_order"]
    messages = sum(verdicts.values())
    faults: list[str] = [*counted(found["counts"])]
    if not messages:
        faults.append(Fault("nothing", "nothing was published"))
    repeats = {
        why: sum(row["repeats"] for row in found["repeats"] if row["why"] == why)
        for why in audit.REPEATS
    }
    return Page(
        job="audit",
        title=run.manifest.run_id,
        meta=words.meta(run),
        verdict="The promise holds.",
        broken="The promise does not hold.",
        unshown="Whether the promise holds was not shown.",
        faults=tuple(faults),
        comment=f"Every one of {messages:,} messages has the fate that it should have.",
        figures=(
            Figure(words.count(messages), "messages"),
            Figure(words.count(verdicts["lost"]), "lost", "confirmed, not delivered"),
            Figure(words.count(verdicts["altered"]), "altered", "by size and body hash"),
            Figure(
                words.count(sum(repeats.values())),
                "delivered again",
                f"{repeats['unexplained']:,} without explanation",
            ),
            Figure(words.count(late), "out of order", f"of {found['order']['ordered']:,} judged"),
        ),
        sections=(
            Section(
                title="What became of them",
                note="Of each subscription: every message that it should have had, and what came besides.",
                bars=_fate_bars(found["subscriptions"]),
            ),
            Section(
                title="When",
                note="What was not as it should be, by the second in which a message was meant to be sent.",
                chart=_over_time(run, found),
            ),
            Section(
                title="Fates of messages",
                tables=(
                    table_of(
                        ("verdict", "messages"),
                        [(name.replace("_", " "), words.count(n)) for name, n in verdicts.items()],
                    ),
                ),
            ),
            Section(title="Subscriptions", tables=(_subscriptions(found["subscriptions"]),)),
            Section(
                title="Delivered again, and why",
                tables=(
                    table_of(
                        ("broker", "subscription", "why", "repeats"),
                        [
                            (
                                row["broker"],
                                f"{row['topic']}/{row['subscription']}",
                                row["why"].replace("_", " "),
                                words.count(row["repeats"]),
                            )
                            for row in found["repeats"]
                        ],
                        left=3,
                    ),
                ),
            ),
            Section(
                title="To be looked up",
                note="The subscriptions in which a message is not as it should be, "
                f"{SUSPECTS_MAX} at most.",
                tables=(_suspects(found["suspects"]),),
            ),
            Section(title="Out of order", tables=(_late(found["late"]),)),
        ),
        words=(*WORDS, words.input_words(run)),
        tables="odd_fates, late",
    )


WORDS = (
    (
        "lost",
        "a confirmed message that a subscription of its topic never had. Which subscriptions "
        "should have it says the manifest, so one that received nothing is missed too, if the manifest "
        "names it: recorders learn of others by what they receive.",
    ),
    (
        "pending",
        "confirmed within the grace before the end, and not delivered yet: neither delivered nor "
        "lost.",
    ),
    (
        "unconfirmed",
        "refused, unroutable or of unknown outcome. Of unknown ones this audit says what they "
        "became: delivered or absent.",
    ),
    (
        "again",
        "owed: the delivery before it by that broker was never answered; acked without proof: its "
        "broker was killed soon after the ack, which AMQP does not confirm; unknown: one more copy may "
        "be stored, for the publish was sent more than once, and each comes once; unexplained: none of "
        "these.",
    ),
    (
        "out of order",
        "a first delivery whose sequence is below one that the same consumer had already, of the "
        "same publisher, key, broker and subscription. Messages that were sent more than once, "
        "and redelivered ones, are not judged; nor can two of one instant be told apart.",
    ),
)


def _fate_bars(rows: Rows) -> Bars:
    return Bars(tuple(_fate_bar(row) for row in rows[:SUBSCRIPTIONS_MAX]))


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
    name = f"{row['topic']}/{row['subscription']}"
    return Bar(name, parts, f"{row['delivered']:,} of {row['expected']:,}")


def _over_time(run: Run, found: dict[str, Any]) -> str:
    rows, width = found["troubles"], found["window_s"]
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
    marks, spans = words.incidents(run)
    ends = words.since_s(run, run.manifest.end_ns or run.manifest.start_ns)
    each = "second" if width == 1 else f"{width} s"
    panel = Panel(f"not as it should be, each {each}", layers, "stack", height=2.4)
    return over_time([panel], until_s=max(ends, ats[-1] + width), marks=marks, spans=spans)


def _subscriptions(rows: list[dict[str, Any]]) -> Table:
    keys = (
        "expected",
        "delivered",
        "lost",
        "pending",
        "altered",
        "deliveries",
        "unconfirmed_delivered",
        "orphan_deliveries",
    )
    return table_of(
        ("subscription", *[key.replace("_", " ") for key in keys]),
        [
            (f"{row['topic']}/{row['subscription']}", *[words.count(row[key]) for key in keys])
            for row in rows
        ],
    )


def _suspects(rows: list[dict[str, Any]]) -> Table:
    keys = ("verdict", "message_id", "topic", "subscription", "publisher", "broker", "deliveries")
    cells = [
        tuple(str(words.NONE if row[key] is None else row[key]) for key in keys) for row in rows
    ]
    return table_of([key.replace("_", " ") for key in keys], cells, left=6, shown_max=SUSPECTS_MAX)


def _late(rows: list[dict[str, Any]]) -> Table:
    keys = ("message_id", "subscription", "consumer", "broker", "publisher", "sequence", "after")
    cells = [tuple(str(row[key]) for key in keys) for row in rows]
    return table_of([key.replace("_", " ") for key in keys], cells, left=5, shown_max=SUSPECTS_MAX)


command = job_command(
    "audit",
    "The fate of every message: lost, doubled, altered, out of order, unknown outcomes resolved.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="audit"))
