"""The numbers of a run put together and judged: the content of `audit.json` and of the reports.

A plain mapping that is written as JSON, so that other tools can compare. Times are seconds since the
start of the run (`_s`) or durations with their unit; ids are hex text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeAlias

from messagebus.telemetry.manifest import Manifest
from messagebus.terminal import plural
from spark.lake.ingest import Ingested
from spark.measures import hdr, latency
from spark.measures.audit import COUNTED, COUNTS, JUDGED, REPEATS, VERDICTS
from spark.measures.faults import (
    PROMISE,
    Fault,
    allowed,
    bad_faults,
    clocks,
    counted,
    said,
    standing,
)
from spark.measures.imbalance import imbalance
from spark.measures.latency import MEASURES, ONE_CLOCK, WHOLE
from spark.measures.throughput import CONFIRMED, DELIVERED
from spark.page.pipeline import CURVE, Numbers, Rows

__all__ = ["DoesNotAddUp", "Summary", "line_summary", "summarize"]

Summary: TypeAlias = dict[str, Any]

PAIR_KEYS = ("expected", "delivered", "deliveries", "lost", "pending", "altered")
SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000


class DoesNotAddUp(Exception):
    """Raised when an audit contradicts itself: a bug in the report, not in the run."""


def summarize(
    numbers: Numbers,
    ingested: Ingested,
    *,
    bad_max: int,
    faults: Sequence[Fault] = (),
    allow: Collection[str] = (),
) -> Summary:
    """Judge a run. Raises DoesNotAddUp.

    bad_max: tolerated bad lines. faults: result of `faults.of_publishes`. allow: names of tolerated faults.
    """
    manifest = ingested.manifest
    totals = _totals(numbers.rows["totals"])
    whole = _sum(totals["subscription"])
    messages = _messages(totals["verdict"])
    lines = line_summary(ingested)
    _check(numbers, whole, messages, lines)
    late = numbers.rows["out_of_order"][0]["count"]
    errors = _errors(numbers, ingested)
    latencies = _latency(numbers.rows["latency"], errors)
    every = [
        *_counted(whole, messages, late, manifest),
        *bad_faults(ingested, bad_max),
        *_nothing(messages),
        *faults,
        *_backwards(numbers),
        *clocks(latency.names(manifest), _below(numbers, errors), ingested),
    ]
    every = list(dict.fromkeys(every))
    failing = standing(every, allow)
    return {
        "run_id": manifest.run_id,
        "holds": not failing,
        "is_broken": any(getattr(fault, "name", "") in PROMISE for fault in failing),
        "faults": failing,
        "notes": [*said(ingested), *allowed(every, allow)],
        "run": _run(ingested, numbers),
        **{key: messages[key] for key in ("published", "confirmed")},
        **{key: whole[key] for key in PAIR_KEYS},
        "doubled": {"total": sum(whole[why] for why in REPEATS)}
        | {why: whole[why] for why in REPEATS},
        "unconfirmed": messages["unconfirmed"]
        | {
            "pairs_delivered": whole["unconfirmed_delivered"],
            "pairs_absent": whole["unconfirmed_absent"],
        },
        "orphan_deliveries": whole["orphan_deliveries"],
        "unexpected": whole["unexpected"],
        "reused_ids": messages["verdicts"]["reused"],
        "verdicts": messages["verdicts"],
        "out_of_order": late,
        "lines": lines,
        "subscriptions": _subscriptions(totals["subscription"]),
        "brokers": _brokers(numbers, totals["broker"], manifest),
        "publishers": _publishers(numbers, totals["publisher"], manifest),
        "imbalance": _imbalance(numbers.rows["brokers"], manifest),
        "latency": latencies,
        "negative_latencies": numbers.negative,
        "suspects": numbers.rows.get("suspects", []),
        "timeline": _timeline(numbers, errors),
    }


def _totals(rows: Rows) -> dict[str, Rows]:
    of: dict[str, Rows] = defaultdict(list)
    for row in rows:
        of[row["of"]].append(row)
    return of


def _sum(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    taken = list(rows)
    return {count: sum(row[count] for row in taken) for count in COUNTS}


def _messages(rows: Rows) -> dict[str, Any]:
    verdicts = dict.fromkeys(VERDICTS, 0)
    outcomes = dict.fromkeys(("confirmed", "refused", "unroutable", "unknown"), 0)
    for row in rows:
        verdicts[row["verdict"]] += row["messages"]
        if row["outcome"]:
            outcomes[row["outcome"]] += row["messages"]
    return {
        "published": sum(outcomes.values()),
        "confirmed": outcomes.pop("confirmed"),
        "unconfirmed": outcomes,
        "verdicts": verdicts,
    }


def line_summary(ingested: Ingested) -> dict[str, Any]:
    """Count the lines of the run's files, read and left out, with the reasons."""
    files = ingested.files
    good = {
        kind: ingested.total(kind, "good") for kind in sorted({f["kind"] for f in files.values()})
    }
    anchors = sum(file["anchors"] for file in files.values())
    return {
        "read": sum(good.values()) + anchors + ingested.bad,
        "anchors": anchors,
        "good": dict.fromkeys(("published", "delivered"), 0) | good,
        "bad": ingested.bad,
        "bad_by_reason": ingested.reasons(),
        "bad_by_file": [
            {
                "file": source,
                "reason": reason,
                "lines": lines,
                "example": file["examples"][reason],
            }
            for source, file in sorted(files.items())
            for reason, lines in sorted(file["bad"].items())
        ],
        "files": len(files),
        "files_skipped": [{"file": file, "reason": why} for file, why in ingested.skipped],
        "files_missing": list(ingested.missing),
        "files_without_anchor": [s for s, file in sorted(files.items()) if not file["has_anchor"]],
    }


def _check(
    numbers: Numbers,
    whole: Mapping[str, int],
    messages: Mapping[str, Any],
    lines: Mapping[str, Any],
) -> None:
    """Check that every message has one verdict, and that every good line is in the audit.

    Raises DoesNotAddUp.
    """
    distinct = numbers.rows["distinct_ids"][0]["ids"]
    judged = sum(messages["verdicts"].values())
    if judged != distinct:
        raise DoesNotAddUp(
            f"{plural(judged, 'message')} judged, {distinct:,} distinct ids recorded"
        )
    publishes = sum(row["published"] for row in numbers.rows["publishers"])
    if publishes != lines["good"]["published"]:
        raise DoesNotAddUp(
            f"{plural(publishes, 'publish')} of {lines['good']['published']:,} good lines"
        )
    if whole["deliveries"] != lines["good"]["delivered"]:
        raise DoesNotAddUp(
            f"{plural(whole['deliveries'], 'delivery')} of {lines['good']['delivered']:,} good lines"
        )


def _counted(
    whole: Mapping[str, int], messages: Mapping[str, Any], late: int, manifest: Manifest
) -> list[Fault]:
    """Return the faults that break the promise."""
    counts = {name: whole[count] for name, count in COUNTED.items()}
    counts |= {name: messages["verdicts"][name] for name in JUDGED}
    counts["pending"] = whole["pending"] if manifest.is_grace_too_long else 0
    return counted(counts | {"late": late})


def _nothing(messages: Mapping[str, Any]) -> list[Fault]:
    return [] if messages["published"] else [Fault("nothing", "nothing was published")]


def _errors(numbers: Numbers, ingested: Ingested) -> dict[str, int]:
    """Return measure -> known difference of clocks, ns."""
    return {
        measure: max(
            numbers.errors.get(measure, 0),
            0 if measure in ONE_CLOCK else ingested.clock_doubt_ns,
        )
        for measure in MEASURES
    }


def _below(numbers: Numbers, errors: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the counts for `faults.clocks`."""
    rows = {row["measure"]: row for row in numbers.rows["latency"] if row["scope"] == WHOLE}

    def hidden(measure: str) -> int:
        row = rows.get(measure)
        supported = [each for each in (50, 99) if row and hdr.supported(each, row["total"])]
        return [hdr.shown(row, each, errors[measure]) for each in supported if row].count(None)

    return {
        measure: {
            "backwards": numbers.backwards.get(measure, 0),
            "error_ns": errors[measure],
            "hidden": hidden(measure),
        }
        for measure in MEASURES
        if measure not in ONE_CLOCK
    }


def _backwards(numbers: Numbers) -> list[Fault]:
    count = sum(n for measure, n in numbers.negative.items() if measure in ONE_CLOCK)
    text = f"{plural(count, 'publish')} with an end before the begin: a clock went back"
    return [Fault("clocks", text, count)] if count else []


def _run(ingested: Ingested, numbers: Numbers) -> dict[str, Any]:
    manifest = ingested.manifest
    windows = [row["window"] + numbers.window_s for row in numbers.rows["timeline"]]
    end_s = _since(manifest, manifest.end_ns) if manifest.end_ns else None
    return {
        "started_at": datetime.fromtimestamp(manifest.start_ns // SECOND_NS, UTC).isoformat(),
        "duration_s": end_s,
        "span_s": numbers.span_s,
        "share": manifest.share,
        "is_corrected": manifest.is_corrected,
        "last_event_before_s": max(windows, default=0),
        "complete": manifest.complete,
        "topics": {topic: list(names) for topic, names in manifest.topics.items()},
        "brokers": list(manifest.brokers),
        "publishers": len(manifest.publishers),
        "consumers": len(manifest.consumers),
        "prefetch": manifest.prefetch,
        "clock_spread_ms": ingested.clock_spread_ns / MILLISECOND_NS,
        "incidents": [
            {
                "kind": one.kind,
                "broker": one.broker,
                "at_s": _since(manifest, one.at_ns),
                "done_s": _since(manifest, one.ended_ns),
            }
            for one in sorted(manifest.incidents, key=lambda one: one.at_ns)
        ],
    }


def _subscriptions(rows: Rows) -> Rows:
    keys = ("topic", "subscription", *(count for count in COUNTS if count != "messages"))
    return [
        {key: row[key] for key in keys}
        for row in sorted(rows, key=lambda row: (row["topic"], row["subscription"]))
    ]


def _brokers(numbers: Numbers, totals: Rows, manifest: Manifest) -> Rows:
    loads = {(row["kind"], row["broker"]): row for row in numbers.rows["brokers"]}
    fates = {row["broker"]: row for row in totals}
    gaps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in numbers.rows["broker_gaps"]:
        gaps[row["broker"]].append((row["gap_ns"], row["until_ns"]))
    repeats: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(REPEATS, 0))
    for row in numbers.rows.get("repeats", []):
        repeats[row["broker"]][row["why"]] += row["repeats"]
    seen = {broker for _, broker in loads} - {""}
    nothing = {"messages": 0, "bytes": 0, "active_s": 0, "peak_per_s": 0}

    def one(broker: str) -> dict[str, Any]:
        confirmed = loads.get((CONFIRMED, broker), nothing)
        delivered = loads.get((DELIVERED, broker), nothing)
        gap_ns, until_ns = max(gaps[broker], default=(None, None))
        return {
            "broker": broker,
            "listed": broker in manifest.brokers,
            "confirmed": confirmed["messages"],
            "confirmed_bytes": confirmed["bytes"],
            "active_s": confirmed["active_s"],
            "confirmed_per_s": confirmed["messages"] / max(1, confirmed["active_s"]),
            "mean_per_s": confirmed["messages"] / (numbers.span_s or 1),
            "peak_per_s": confirmed["peak_per_s"],
            "deliveries": delivered["messages"],
            "lost": fates[broker]["lost"] if broker in fates else 0,
            "doubled": repeats[broker],
            **_gap(manifest, gap_ns, until_ns),
        }

    return [one(broker) for broker in sorted({*manifest.brokers, *seen})]


def _publishers(numbers: Numbers, totals: Rows, manifest: Manifest) -> Rows:
    fates = {row["publisher"]: row for row in totals}
    gaps = {row["publisher"]: row for row in numbers.rows["publisher_gaps"]}

    def one(row: dict[str, Any]) -> dict[str, Any]:
        gap = gaps.get(row["publisher"], {"gap_ns": None, "until_ns": None})
        lost = fates[row["publisher"]]["lost"] if row["publisher"] in fates else 0
        return row | {"lost": lost} | _gap(manifest, gap["gap_ns"], gap["until_ns"])

    return [one(row) for row in sorted(numbers.rows["publishers"], key=lambda r: r["publisher"])]


def _gap(manifest: Manifest, gap_ns: int | None, until_ns: int | None) -> dict[str, float | None]:
    """Return longest_gap_ms and longest_gap_at_s (its begin); None where there were no two."""
    if gap_ns is None or until_ns is None:
        return {"longest_gap_ms": None, "longest_gap_at_s": None}
    return {
        "longest_gap_ms": gap_ns / MILLISECOND_NS,
        "longest_gap_at_s": _since(manifest, until_ns - gap_ns),
    }


def _imbalance(rows: Rows, manifest: Manifest) -> dict[str, Any]:
    """Judge the balance of all brokers of the run: in messages, and in the rate while a broker took any."""
    loads = {(row["kind"], row["broker"]): row for row in rows}
    brokers = sorted({*manifest.brokers, *(broker for _, broker in loads)} - {""})
    confirmed = [loads.get((CONFIRMED, broker)) for broker in brokers]
    delivered = [loads.get((DELIVERED, broker)) for broker in brokers]
    judged = {
        "confirmed": imbalance([row["messages"] if row else 0 for row in confirmed]),
        "confirmed_per_s": imbalance(
            [row["messages"] / row["active_s"] if row else 0 for row in confirmed]
        ),
        "deliveries": imbalance([row["messages"] if row else 0 for row in delivered]),
    }
    return {of: asdict(found) if found else None for of, found in judged.items()}


def _latency(rows: Rows, errors: Mapping[str, int]) -> Rows:
    """Return the percentiles; one that says nothing is None."""
    order = sorted(rows, key=lambda row: (row["measure"], row["scope"] != WHOLE, row["name"]))
    return [
        {
            **{key: row[key] for key in ("measure", "scope", "name")},
            "samples": row["total"],
            "percentiles_ms": [[each, _ms(row, each, errors[row["measure"]])] for each in CURVE],
        }
        for row in sorted(
            order, key=lambda row: (row["measure"], row["scope"] != WHOLE, row["scope"])
        )
    ]


def _ms(row: Mapping[str, Any], percentile: float, error_ns: int) -> float | None:
    value = hdr.shown(row, percentile, error_ns)
    return None if value is None else value / MILLISECOND_NS


def _timeline(numbers: Numbers, errors: Mapping[str, int]) -> dict[str, Any]:
    loads = sorted(numbers.rows["timeline"], key=lambda r: (r["kind"], r["broker"], r["window"]))
    return {
        "window_s": numbers.window_s,
        "throughput": [
            {key: row[key] for key in ("kind", "broker", "topic", "subscription")}
            | {"at_s": row["window"], "per_s": row["messages"] / numbers.window_s}
            for row in loads
        ],
        "latency": [
            {
                "measure": row["measure"],
                "at_s": row["window"],
                "p50_ms": _ms(row, 50, errors[row["measure"]]),
                "p99_ms": _ms(row, 99, errors[row["measure"]]),
                "max_ms": _ms(row, 100, errors[row["measure"]]),
            }
            for row in sorted(
                numbers.rows["latency_timeline"], key=lambda r: (r["measure"], r["window"])
            )
        ],
    }


def _since(manifest: Manifest, at_ns: int) -> float:
    return (at_ns - manifest.start_ns) / SECOND_NS
