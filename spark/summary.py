"""The numbers of a whole run, put together from the answers of the jobs: the content of audit.json.

A plain mapping, so that other tools can compare. Times are seconds since the start of the run (`_s`) or
durations with their unit; ids are hex text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from messagebus.terminal import plural
from spark.command import Answer
from spark.lake.ingest import Ingested
from spark.measures import hdr
from spark.measures.audit import COUNTS, REPEATS
from spark.measures.faults import DoesNotAddUp
from spark.measures.imbalance import OF_BROKERS, OF_DELIVERIES, OF_RATES
from spark.measures.latency import CURVE, WHOLE
from spark.measures.run import Run
from spark.measures.throughput import CONFIRMED, DELIVERED
from spark.pages import bad_lines, incidents, since_s

Rows: TypeAlias = list[dict[str, Any]]

MILLISECOND_NS, SECOND_NS = 1_000_000, 1_000_000_000
SUSPECTS_MAX = 50
PAIRS = ("expected", "delivered", "deliveries", "lost", "pending", "altered")


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of the other jobs about one run, and numbers of the report alone.

    broker_gaps: of `gaps.longest`. timeline: of `latency.timeline`, in the windows of the throughput.
    distinct: number of different ids in the events.
    """

    run: Run
    audit: Answer
    failover: Answer
    imbalance: Answer
    latency: Answer
    throughput: Answer
    publishers: Rows
    broker_gaps: Rows
    timeline: Rows
    distinct: int


def check(measured: Measured) -> None:
    """Check that every message has one verdict, and that every good line is counted. Raises DoesNotAddUp."""
    judged = sum(measured.audit.measured["verdicts"].values())
    if judged != measured.distinct:
        raise DoesNotAddUp(
            f"{plural(judged, 'message')} judged, {measured.distinct:,} distinct ids recorded"
        )
    publishes = sum(row["published"] for row in measured.publishers)
    good = measured.run.ingested.total("published", "good")
    if publishes != good:
        raise DoesNotAddUp(f"{plural(publishes, 'publish')} of {good:,} good lines")


def summarize(measured: Measured) -> dict[str, Any]:
    run, audited, judged = (
        measured.run,
        measured.audit.measured,
        measured.imbalance.measured["judged"],
    )
    return {
        "run_id": run.manifest.run_id,
        "is_broken": False,
        "notes": [],
        "run": _run(measured),
        **_counts(audited),
        "verdicts": audited["verdicts"],
        "out_of_order": audited["order"]["out_of_order"],
        "lines": _lines(run.ingested),
        "subscriptions": [
            {name: row[name] for name in ("topic", "subscription", *COUNTS[1:])}
            for row in sorted(
                audited["subscriptions"], key=lambda row: (row["topic"], row["subscription"])
            )
        ],
        "brokers": _brokers(measured),
        "publishers": _publishers(measured),
        "imbalance": {
            "confirmed": judged[OF_BROKERS],
            "confirmed_per_s": judged[OF_RATES],
            "deliveries": judged[OF_DELIVERIES],
        },
        "latency": [
            {
                **{key: row[key] for key in ("measure", "scope", "name")},
                "samples": row["total"],
                "percentiles_ms": [[each, _ms(measured, row, each)] for each in CURVE],
            }
            for row in sorted(
                measured.latency.measured["percentiles"],
                key=lambda row: (row["measure"], row["scope"] != WHOLE, row["scope"], row["name"]),
            )
        ],
        "negative_latencies": {
            measure: row["below"] for measure, row in measured.latency.measured["clocks"].items()
        },
        "suspects": audited["suspects"][:SUSPECTS_MAX],
        "timeline": _timelines(measured),
    }


def _counts(audited: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of messages, and of pairs over all subscriptions."""
    whole = {name: sum(row[name] for row in audited["subscriptions"]) for name in COUNTS}
    outcomes = dict(audited["outcomes"])
    return {
        "published": sum(outcomes.values()),
        "confirmed": outcomes.pop("confirmed"),
        **{name: whole[name] for name in PAIRS},
        "doubled": {"total": sum(whole[why] for why in REPEATS)}
        | {why: whole[why] for why in REPEATS},
        "unconfirmed": outcomes
        | {
            "pairs_delivered": whole["unconfirmed_delivered"],
            "pairs_absent": whole["unconfirmed_absent"],
        },
        "orphan_deliveries": whole["orphan_deliveries"],
        "unexpected": whole["unexpected"],
        "reused_ids": audited["verdicts"]["reused"],
    }


def _run(measured: Measured) -> dict[str, Any]:
    run = measured.run
    manifest, timeline = run.manifest, measured.throughput.measured["timeline"]
    width_s = measured.throughput.measured["window_s"]
    return {
        "started_at": datetime.fromtimestamp(manifest.start_ns // SECOND_NS, UTC).isoformat(),
        "duration_s": since_s(run, manifest.end_ns) if manifest.end_ns else None,
        "span_s": run.span_s,
        "share": manifest.share,
        "is_corrected": manifest.is_corrected,
        "last_event_before_s": max((row["window"] + width_s for row in timeline), default=0),
        "complete": manifest.complete,
        "topics": {topic: list(names) for topic, names in manifest.topics.items()},
        "brokers": list(manifest.brokers),
        "publishers": len(manifest.publishers),
        "consumers": len(manifest.consumers),
        "prefetch": manifest.prefetch,
        "clock_spread_ms": run.ingested.clock_spread_ns / MILLISECOND_NS,
        "incidents": incidents(run),
    }


def _lines(ingested: Ingested) -> dict[str, Any]:
    """Count the lines of the run's files, read and left out, with the reasons."""
    files = ingested.files
    good = {
        kind: ingested.total(kind, "good") for kind in sorted({f["kind"] for f in files.values()})
    }
    anchors = sum(file["anchors"] for file in files.values())
    return {
        "read": sum(good.values()) + anchors + ingested.bad,
        "anchors": anchors,
        "good": {"published": 0, "delivered": 0} | good,
        "bad": ingested.bad,
        "bad_by_reason": ingested.reasons(),
        "bad_by_file": [
            {
                "file": row["file"],
                "reason": row["why"],
                "lines": row["lines"],
                "example": row["for example"],
            }
            for row in bad_lines(ingested)
        ],
        "files": len(files),
        "files_skipped": [{"file": file, "reason": why} for file, why in ingested.skipped],
        "files_missing": list(ingested.missing),
        "files_without_anchor": [s for s, file in sorted(files.items()) if not file["has_anchor"]],
    }


def _brokers(measured: Measured) -> Rows:
    loads = {(row["kind"], row["broker"]): row for row in measured.throughput.measured["brokers"]}
    fates = {row["broker"]: row for row in measured.audit.measured["brokers"]}
    longest: dict[str, tuple[int, int]] = {}
    for row in measured.broker_gaps:
        gap = (row["gap_ns"], row["until_ns"])
        longest[row["broker"]] = max(longest.get(row["broker"], gap), gap)
    repeats: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(REPEATS, 0))
    for row in measured.audit.measured["repeats"]:
        repeats[row["broker"]][row["why"]] += row["repeats"]
    listed = measured.run.manifest.brokers
    nothing = {"messages": 0, "bytes": 0, "active_s": 0, "peak_per_s": 0}

    def one(broker: str) -> dict[str, Any]:
        confirmed = loads.get((CONFIRMED, broker), nothing)
        gap_ns, until_ns = longest.get(broker, (None, None))
        return {
            "broker": broker,
            "listed": broker in listed,
            "confirmed": confirmed["messages"],
            "confirmed_bytes": confirmed["bytes"],
            "active_s": confirmed["active_s"],
            "confirmed_per_s": confirmed["messages"] / max(1, confirmed["active_s"]),
            "mean_per_s": confirmed["messages"] / measured.run.span_s,
            "peak_per_s": confirmed["peak_per_s"],
            "deliveries": loads.get((DELIVERED, broker), nothing)["messages"],
            "lost": fates[broker]["lost"] if broker in fates else 0,
            "doubled": repeats[broker],
            "longest_gap_ms": None if gap_ns is None else gap_ns / MILLISECOND_NS,
            "longest_gap_at_s": None
            if gap_ns is None or until_ns is None
            else since_s(measured.run, until_ns - gap_ns),
        }

    return [one(name) for name in sorted({*listed, *(name for _, name in loads)} - {""})]


def _publishers(measured: Measured) -> Rows:
    lost = {row["publisher"]: row["lost"] for row in measured.audit.measured["publishers"]}
    longest = {row["publisher"]: row for row in measured.failover.measured["longest"]}
    none = {"gap_ms": None, "began_s": None}
    return [
        row
        | {
            "lost": lost.get(row["publisher"], 0),
            "longest_gap_ms": longest.get(row["publisher"], none)["gap_ms"],
            "longest_gap_at_s": longest.get(row["publisher"], none)["began_s"],
        }
        for row in sorted(measured.publishers, key=lambda row: str(row["publisher"]))
    ]


def _ms(measured: Measured, row: Mapping[str, Any], percentile: float) -> float | None:
    """Return a percentile in ms; None where it says nothing."""
    error_ns = measured.latency.measured["clocks"][row["measure"]]["error_ns"]
    value = hdr.shown(row, percentile, error_ns)
    return None if value is None else value / MILLISECOND_NS


def _timelines(measured: Measured) -> dict[str, Any]:
    width_s, rows = (
        measured.throughput.measured["window_s"],
        measured.throughput.measured["timeline"],
    )
    return {
        "window_s": width_s,
        "throughput": [
            {key: row[key] for key in ("kind", "name")}
            | {"at_s": row["window"], "per_s": row["messages"] / width_s}
            for row in sorted(rows, key=lambda row: (row["kind"], row["name"], row["window"]))
        ],
        "latency": [
            {
                "measure": row["measure"],
                "at_s": row["window"],
                "p50_ms": _ms(measured, row, 50),
                "p99_ms": _ms(measured, row, 99),
                "max_ms": _ms(measured, row, 100),
            }
            for row in sorted(measured.timeline, key=lambda row: (row["measure"], row["window"]))
        ],
    }
