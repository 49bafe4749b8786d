"""The silence of publishers and consumers after each incident.

spark-submit spark/jobs/failover.py --events DIR --out DIR
"""

from __future__ import annotations

import dataclasses
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
# Publishers that a sentence names; more are counted.
NAMED_MAX = 3
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
        "met": _met(gaps.met(published, incidents), gaps.before(by_publisher, dims, incidents)),
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
        verdict = f"{_longest_wait(measured)}{_without(measured['unconfirmed'])}."
    page = page_of(
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
    return dataclasses.replace(page, meta=(*page.meta, *costs(measured)))


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
            note="The longest time without a first delivery around each incident. The absence of a "
            "broker that was down is in it only while messages waited for it.",
        ),
        section_of("Whole run", measured["longest"], {"publisher": "publisher", **GAP}),
    )


def _met(counts: DataFrame, before: DataFrame) -> list[dict[str, Any]]:
    """Return number, publisher, connected, resent, before_ms (None: no silence) of `gaps.met`."""
    earlier = {
        (row["number"], row["publisher"]): row["gap_ns"] / NS_PER_MS for row in collected(before)
    }
    return [
        row | {"before_ms": earlier.get((row["number"], row["publisher"]))}
        for row in sorted(collected(counts), key=lambda row: (row["number"], row["publisher"]))
    ]


def _longest_wait(measured: Mapping[str, Any]) -> str:
    """Name the longest silence of a publisher around an incident, and that of the run where it is longer."""
    whole, around = measured["longest"][0], measured["publishers"]
    of_run = milliseconds(whole["gap_ms"])
    if not around:
        return f"No publisher waited longer than {of_run}"
    row = around[0]
    incident, longest = _name(row["kind"], row["at_broker"]), milliseconds(row["gap_ms"])
    text = f"No publisher waited longer than {longest} around {incident}"
    if whole["gap_ms"] > row["gap_ms"]:
        text += f"; of no incident is the longest wait: {of_run} from {whole['began_s']:,.1f} s on"
    return text


def _name(kind: str, broker: str) -> str:
    return f"{kind} {broker}".strip()


def costs(measured: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each incident: whom it kept waiting, for how long, and what was sent again."""
    every = [one | {"done_s": one["at_s"] + one["lasted_s"]} for one in measured["incidents"]]
    told = [_cost(one, every, measured) for one in every[:FIGURES_MAX]]
    rest = len(every) - len(told)
    return [*told, *([f"{plural(rest, 'more incident')}."] if rest else [])]


def _cost(
    one: Mapping[str, Any], every: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]
) -> str:
    silent = {row["publisher"]: row["gap_ms"] for row in _own(one, measured)}
    met = [row for row in measured["met"] if row["number"] == one["number"]]
    rows = [row | {"gap_ms": silent.get(row["publisher"], 0.0)} for row in met]
    its = [row for row in rows if row["connected"]]
    others = [row for row in rows if not row["connected"]]
    groups = [
        f"{_who(its)}, to whom it had confirmed, {_waited(its)}" if its else "",
        f"{'the other ' if its else ''}{_who(others, named=not its)} {_waited(others)}"
        if others
        else "",
    ]
    over, name = over_s(one, every), _name(one["kind"], one["broker"])
    down = ""
    if one["kind"] == "kill":
        until = f"{over:,.1f} s" if over > one["at_s"] else "the end"
        down = f" It was down from {one['at_s']:,.1f} s to {until}."
    cost = "; ".join(filter(None, groups)) or "no publisher was waiting"
    return f"{name} at {one['at_s']:,.1f} s: {cost}.{down}"


def _who(rows: Sequence[Mapping[str, Any]], *, named: bool = True) -> str:
    if named and len(rows) <= NAMED_MAX:
        return " and ".join(row["publisher"] for row in rows)
    return plural(len(rows), "publisher")


def _waited(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how long these had no confirm, at most, how long before, and how many messages they sent again."""
    longest = milliseconds(max(row["gap_ms"] for row in rows))
    known = [row["before_ms"] for row in rows if row["before_ms"] is not None]
    earlier = f"{milliseconds(max(known))} in" if known else "nothing waited in"
    again = sum(row["resent"] for row in rows)
    sent = f", and sent {plural(again, 'message')} again" if again else ""
    return f"had no confirm for up to {longest} ({earlier} the {FOLLOWS_NS / NS_PER_S:g} s before){sent}"


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
            "incident": lambda row: _name(row["kind"], row["at_broker"]),
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
