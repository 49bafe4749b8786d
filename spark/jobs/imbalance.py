"""The balance of load over brokers, connections and keys.

spark-submit spark/jobs/imbalance.py --events DIR --out DIR
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from messagebus.terminal import plural
from spark.command import Answer, exit_code, job_command
from spark.measures import throughput
from spark.measures.faults import Fault, lost_at_least, missing_at_least
from spark.measures.imbalance import Imbalance, hot_keys, imbalance, imbalance_of, key_loads, keys
from spark.measures.run import Run
from spark.measures.throughput import CONFIRMED, DELIVERED
from spark.page import words
from spark.page.page import (
    BARS_MAX,
    NO_BARS,
    Bars,
    Figure,
    Page,
    Section,
    Table,
    against_mean,
    table_of,
)

__all__ = ["command", "measure"]

HOT_MAX = 20


def measure(run: Run) -> Answer:
    published = run.events("published")
    seconds = run.keep(
        "throughput",
        throughput.per_second(published, run.events("delivered"), run.manifest.start_ns),
    )
    brokers = words.collected(throughput.totals(seconds, ["broker"]))
    connections = words.collected(throughput.totals(seconds, ["publisher", "broker"]))
    keyed = keys(published)
    loads = [(row["messages"], row["keys"]) for row in words.collected(key_loads(keyed))]
    found: dict[str, Any] = {
        "brokers": brokers,
        "connections": [row for row in connections if row["kind"] == CONFIRMED],
        "hot_keys": words.collected(hot_keys(keyed, HOT_MAX)) if loads else [],
        "keyed": sum(messages * count for messages, count in loads),
        "judged": {
            name: asdict(judged) if judged else None
            for name, judged in _judged(run, brokers, connections, loads).items()
        },
    }
    found["missing_at_least"] = missing_at_least(run, seconds)
    return Answer(found, _page(run, found))


def _judged(
    run: Run,
    brokers: list[dict[str, Any]],
    connections: list[dict[str, Any]],
    loads: list[tuple[int, int]],
) -> dict[str, Imbalance | None]:
    of = {(row["kind"], row["broker"]): row for row in brokers}
    names = _brokers(run, brokers)
    confirmed = [of.get((CONFIRMED, name)) for name in names]
    return {
        "brokers, messages confirmed": imbalance([r["messages"] if r else 0 for r in confirmed]),
        "brokers, rate while they took any": imbalance(
            [r["messages"] / r["active_s"] if r else 0 for r in confirmed]
        ),
        "brokers, deliveries": imbalance(
            [of[DELIVERED, name]["messages"] if (DELIVERED, name) in of else 0 for name in names]
        ),
        "connections, messages confirmed": imbalance(
            [row["messages"] for row in connections if row["kind"] == CONFIRMED]
        ),
        "keys, messages": imbalance_of(loads),
    }


def _brokers(run: Run, rows: list[dict[str, Any]]) -> list[str]:
    """Return the brokers of the run, also those without a message, and brokers that nobody listed."""
    seen = {row["broker"] for row in rows if row["broker"]}
    return [*run.manifest.brokers, *sorted(seen - {*run.manifest.brokers})]


def _page(run: Run, found: dict[str, Any]) -> Page:
    judged = {name: one for name, one in found["judged"].items() if one}
    load = judged.get("brokers, messages confirmed")
    figures = [
        Figure(
            f"{one['max_over_mean']:.2f}", f"largest / mean of {name}", f"Gini {one['gini']:.3f}"
        )
        for name, one in judged.items()
    ]
    table = table_of(
        ("of", "count", "mean", "largest / mean", "Gini"),
        [
            (
                name,
                f"{one['count']:,}",
                f"{one['mean']:,.1f}",
                f"{one['max_over_mean']:.2f}",
                f"{one['gini']:.3f}",
            )
            for name, one in judged.items()
        ],
    )
    return Page(
        job="imbalance",
        title=run.manifest.run_id,
        meta=words.meta(run),
        verdict=f"Of all messages the busiest broker took {load['max_over_mean']:.2f} times the mean."
        if load
        else "Nothing was confirmed.",
        faults=(
            *(() if load else (Fault("nothing", "nothing was confirmed"),)),
            *lost_at_least(found["missing_at_least"]),
        ),
        figures=tuple(figures),
        sections=(
            Section(
                title="Brokers",
                note="Messages that each of them confirmed.",
                bars=_broker_bars(run, found),
                tables=(_loads(found["brokers"], ("kind", "broker")),),
            ),
            Section(title="Balance", tables=(table,)),
            Section(
                title="Connections",
                note="A publisher at a broker; one that moved has several.",
                bars=_bars(
                    found,
                    "connections, messages confirmed",
                    [
                        (f"{row['publisher']} at {row['broker']}", row["messages"])
                        for row in found["connections"]
                    ],
                ),
                tables=(_loads(found["connections"], ("publisher", "broker")),),
            ),
            Section(
                title="Hot keys",
                note=f"The {HOT_MAX} keys with the most messages, if more than the mean, of "
                f"{plural(found['keyed'], 'message')} that have one.",
                bars=_bars(
                    found,
                    "keys, messages",
                    [
                        (f"{row['topic']} {row['key']}", row["messages"])
                        for row in found["hot_keys"]
                    ],
                ),
                tables=(_keys(found),),
            ),
        ),
        words=(
            ("largest / mean", "1 is even; n is all on one of n."),
            ("Gini", "0 is even; (n - 1) / n is all on one."),
            (
                "rate while they took any",
                "messages over the seconds in which the broker confirmed any: one that was added "
                "late, or was down, is judged for its own time. It forgives a broker that took little.",
            ),
            words.input_words(run),
        ),
        tables="throughput",
    )


def _broker_bars(run: Run, found: dict[str, Any]) -> Bars:
    """Draw the loads of all brokers of the run, in their order."""
    loads = {row["broker"]: row["messages"] for row in found["brokers"] if row["kind"] == CONFIRMED}
    named = [(broker, loads.get(broker, 0)) for broker in _brokers(run, found["brokers"])]
    if len(named) > BARS_MAX:
        named.sort(key=lambda load: -load[1])
    return _bars(found, "brokers, messages confirmed", named, is_sorted=True)


def _bars(
    found: dict[str, Any], of: str, loads: list[tuple[str, int]], *, is_sorted: bool = False
) -> Bars:
    judged = found["judged"][of]
    if not judged:
        return NO_BARS
    ordered = loads if is_sorted else sorted(loads, key=lambda load: -load[1])
    total = round(judged["mean"] * judged["count"])
    return against_mean(
        ordered, "messages", mean=judged["mean"], total=total, count=judged["count"]
    )


def _loads(rows: list[dict[str, Any]], dims: tuple[str, ...]) -> Table:
    ordered = sorted(rows, key=lambda row: (row["kind"], -row["messages"]))
    return table_of(
        (*dims, "messages", "MB", "best second"),
        [
            (
                *[row[dim] for dim in dims],
                words.count(row["messages"]),
                f"{row['bytes'] / 1e6:,.1f}",
                f"{row['peak_per_s']:,}/s",
            )
            for row in ordered
        ],
        left=len(dims),
    )


def _keys(found: dict[str, Any]) -> Table:
    return table_of(
        ("topic", "key", "messages", "share", "MB"),
        [
            (
                row["topic"],
                row["key"],
                words.count(row["messages"]),
                f"{row['messages'] / found['keyed']:.1%}",
                f"{row['bytes'] / 1e6:,.1f}",
            )
            for row in found["hot_keys"]
            if row["messages"] > found["judged"]["keys, messages"]["mean"]
        ],
        left=2,
    )


command = job_command(
    "imbalance",
    "Balance of brokers and connections, Gini and largest over mean; hot keys.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="imbalance"))
