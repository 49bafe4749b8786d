"""The silence of publishers and consumers after each incident.

spark-submit spark/jobs/failover.py --events DIR --out DIR
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from messagebus.clock import NS_PER_MS, NS_PER_S
from messagebus.recording.manifest import FOLLOWS_NS
from messagebus.terminal import plural
from reports.charts import Around, Gap, silences
from reports.page import Figure, Page, Section, section_of
from reports.text import Cell, milliseconds
from spark.command import Answer, exit_code, job_command
from spark.measures import audit, gaps
from spark.measures.faults import counted, unconfirmed
from spark.measures.run import Run
from spark.pages import collected, over_s, page_of, since_s

BROKER_DIMS = ["broker", "topic", "subscription"]
# Incidents that are shown above the tables.
FIGURES_MAX = 10
WORDS = {
    "gap": "time without a confirm, or without a first delivery, while a message waited for one. Repeats "
    "end no gap. A message that was never confirmed waits until the next confirm of its publisher, or to "
    "the end of the run; so does a message that was never delivered.",
    "around": "gaps that lasted during the incident, or began within "
    f"{FOLLOWS_NS / NS_PER_S:g} s after it and before the next one.",
}
GAP: dict[str, Cell] = {
    "longest gap": lambda row: milliseconds(row["gap_ms"]),
    "began": lambda row: f"{row['began_s']:,.1f} s",
}


def measure(run: Run) -> Answer:
    published, until_ns = run.events("published"), run.until_ns
    fates = run.fates()
    received = audit.first_deliveries(fates)
    incidents = gaps.incident_rows(run.session, run.manifest.incidents)
    waiting = published.select(
        "publisher",
        F.col("intended_ns").alias("waiting_ns"),
        F.col("confirmed_ns").alias("first_ns"),
    )
    dims, of = ["publisher"], {"start": "waiting_ns", "end": "first_ns"}
    by_publisher = gaps.every(waiting, dims, **of, until_ns=until_ns)
    by_broker = gaps.every(received, BROKER_DIMS, **of, until_ns=until_ns)
    found: dict[str, Any] = {
        "incidents": [
            {
                "number": row["number"],
                "kind": row["kind"],
                "broker": row["at_broker"],
                "at_s": since_s(run, row["from_ns"]),
                "lasted_s": (row["to_ns"] - row["from_ns"]) / NS_PER_S,
            }
            for row in collected(incidents.orderBy("number"))
        ],
        "publishers": _gap_rows(run, gaps.around(by_publisher, ["publisher"], incidents)),
        "brokers": _gap_rows(run, gaps.around(by_broker, BROKER_DIMS, incidents)),
        "longest": _gap_rows(run, gaps.longest(waiting, dims, **of, until_ns=until_ns)),
        "unconfirmed": unconfirmed(run),
        "lost": fates.filter("lost").count(),
    }
    return Answer(found, _page(run, found))


def _gap_rows(run: Run, around: DataFrame) -> list[dict[str, Any]]:
    """Return the gaps, longest first; times as seconds since the start, durations in ms."""
    rows = [
        {key: value for key, value in row.items() if not key.endswith("_ns")}
        | {
            "gap_ms": row["gap_ns"] / NS_PER_MS,
            "began_s": since_s(run, row["until_ns"] - row["gap_ns"]),
        }
        for row in collected(around)
    ]
    return sorted(rows, key=lambda row: -row["gap_ms"])


def _page(run: Run, measured: dict[str, Any]) -> Page:
    verdict = "Nothing was published."
    if measured["longest"]:
        longest = milliseconds(measured["longest"][0]["gap_ms"])
        verdict = f"No publisher waited longer than {longest}{_without(measured['unconfirmed'])}."
    return page_of(
        run,
        "failover",
        verdict=verdict,
        faults=tuple(counted({"lost": measured["lost"]})),
        comment=f"{plural(len(measured['incidents']), 'thing')} done to the cluster.",
        figures=tuple(
            _figure(one, own)
            for one in measured["incidents"][:FIGURES_MAX]
            if (own := _own(one, measured))
        ),
        sections=_sections(measured),
        words=WORDS,
        tables=("fates",),
    )


def _sections(measured: dict[str, Any]) -> tuple[Section, ...]:
    return (
        Section(
            title="Around each of them",
            note="Bars: who was silent from when to when. A publisher had no confirm, a broker delivered "
            "nothing new, while something waited for it. Shaded: as long as it lasted; after a kill, until "
            "the broker was back." + _rest(measured),
            chart=silences(_events(measured)),
        ),
        _gaps(
            measured,
            ("publisher",),
            note="The longest time without a confirm around each incident.",
        ),
        _gaps(
            measured,
            ("broker", "topic", "subscription"),
            note="The longest time without a first delivery around each incident. For a broker that was "
            "down its own absence is in it.",
        ),
        section_of("Whole run", measured["longest"], {"publisher": "publisher", **GAP}),
    )


def _without(unconfirmed: dict[str, int]) -> str:
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(unconfirmed.items()))
    return (
        f"; {plural(sum(unconfirmed.values()), 'publish')} without a confirm ({told})"
        if told
        else ""
    )


def _rest(measured: dict[str, Any]) -> str:
    count = len(measured["incidents"])
    return f" The first {FIGURES_MAX} of {count:,}." if count > FIGURES_MAX else ""


def _events(measured: dict[str, Any]) -> list[Around]:
    every = [one | {"done_s": one["at_s"] + one["lasted_s"]} for one in measured["incidents"]]
    return [
        Around(
            f"{one['kind']} {one['broker']}".strip(),
            one["at_s"],
            over_s(one, every),
            _longest(measured, one["number"]),
        )
        for one in every[:FIGURES_MAX]
    ]


def _longest(measured: dict[str, Any], number: int) -> list[Gap]:
    """Return the longest gap of each publisher and broker around an incident, over all subscriptions."""
    gaps: dict[tuple[str, str], Gap] = {}
    for kind, key in (("publisher", "publishers"), ("broker", "brokers")):
        for row in measured[key]:
            if row["number"] == number:
                gap = Gap(kind, row[kind], row["began_s"], row["gap_ms"] / 1000)
                gaps.setdefault((kind, gap.name), gap)
    return sorted(gaps.values(), key=lambda gap: -gap.lasted_s)


def _own(incident: Mapping[str, Any], measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the silences of publishers around an incident, the longest first."""
    return [row for row in measured["publishers"] if row["number"] == incident["number"]]


def _figure(incident: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> Figure:
    return Figure(
        milliseconds(own[0]["gap_ms"]),
        f"silence of {own[0]['publisher']}: {incident['kind']} {incident['broker']}".strip(),
        f"at {incident['at_s']:,.1f} s, the longest of {plural(len(own), 'publisher')}",
    )


def _gaps(measured: dict[str, Any], dims: tuple[str, ...], *, note: str) -> Section:
    """Make the section of the longest gaps of publishers, or of brokers, around each incident."""
    key = f"{dims[0]}s"
    at_s = {one["number"]: one["at_s"] for one in measured["incidents"]}
    return section_of(
        key.capitalize(),
        sorted(measured[key], key=lambda row: (row["number"], -row["gap_ms"])),
        {
            "incident": lambda row: f"{row['kind']} {row['at_broker']}".strip(),
            "at": lambda row: f"{at_s[row['number']]:,.1f} s",
            **{dim: dim for dim in dims},
            **GAP,
        },
        left=2 + len(dims),
        note=note,
    )


command = job_command(
    "failover",
    "Gaps of publishers and brokers around each kill, cut, addition and removal.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="failover"))
