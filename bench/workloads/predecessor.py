"""The predecessor's headline again: standalone nodes against a native cluster, by turns, as ratios.

Groupon's MessageBus reached 238 % of a native HornetQ cluster with 50 publishers of 10,000 messages each
(S1), and 197 % with additional 50 consumers on one queue (S2), on two hosts in 2013. Here both sides are
RabbitMQ on one machine, with messagebus' client on both. The native cluster has quorum queues with a member
on every node, so it keeps as many copies as nodes; a standalone node keeps one.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.analysis.compare import Ratio, ratio_of
from bench.analysis.result import numbers_of
from bench.analysis.series import Step, Summary, faults_of
from bench.figures.figure import Figure, Maker
from bench.load.profile import Profile, System
from bench.load.schedule import Closed
from reports.text import significant

PREDECESSOR = {"seed-s1": 2.38, "seed-s2": 1.97}
NODES, WINDOWS = (2, 3), (1, 50)
# The fraction of each publisher's messages where every one waits for the disk: all of them would take
# minutes a run on two cores. Results and figures state their number.
PART_AT_WINDOW_1 = 5
SIDES = {"messagebus": "standalone", "native": "native"}


def steps(base: Profile, repeat: int, part: int = 1) -> list[Step]:
    """Return the steps. Each repetition runs both sides, each side first by turns.

    part: 10 sends a tenth of everything.
    """
    found = []
    for nodes in NODES:
        for number in range(repeat):
            sides = list(SIDES) if number % 2 == 0 else list(reversed(SIDES))
            for side in sides:
                system = System(name=side, brokers=nodes)
                for window in WINDOWS:
                    name = step_name(nodes, window, side, number)
                    found.append(Step(name, _sized(base, system, window, part)))
    return found


def step_name(nodes: int, window: int, side: str, number: int) -> str:
    return f"{nodes}-nodes-{SIDES[side]}-window-{window}-{number + 1}"


def _sized(base: Profile, system: System, window: int, part: int) -> Profile:
    schedule = base.load.schedule
    assert isinstance(schedule, Closed)
    less = part * (PART_AT_WINDOW_1 if window == 1 else 1)
    closed = Closed(count=max(1, schedule.count // less))
    load = dataclasses.replace(base.load, window=window, schedule=closed)
    return dataclasses.replace(base, system=system, load=load)


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """A measure of the comparison. name: in `result.NUMBERS`. part: in ids. A lower cost is better."""

    name: str
    part: str
    unit: str
    is_cost: bool = False


CONFIRMED = Measure("confirmed a second", "confirmed", "messages/s")
DELIVERED = Measure("delivered a second", "delivered", "messages/s")
CPU = Measure("broker CPU us", "broker_cpu", "us", is_cost=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Pairs:
    """One number of nodes and one window; values of each repetition, in order."""

    nodes: int
    window: int
    count: int
    measure: Measure
    standalone: tuple[float, ...]
    native: tuple[float, ...]

    @property
    def sides(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The two sides. The ratio is the second over the first: above 1, standalone nodes do better."""
        both = (self.native, self.standalone)
        return (both[1], both[0]) if self.measure.is_cost else both

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(b / a for a, b in zip(*self.sides, strict=True))

    @property
    def ratio(self) -> Ratio | None:
        return ratio_of(*self.sides)


def pairs(results: Mapping[str, Mapping[str, Any]], measure: Measure) -> Iterator[Pairs]:
    """Yield the pairs for which all repetitions of both sides have results."""
    repeat = max(int(name.rpartition("-")[2]) for name in results)
    for nodes in NODES:
        for window in WINDOWS:
            sides = [
                [results.get(step_name(nodes, window, side, each)) for each in range(repeat)]
                for side in SIDES
            ]
            one, other = ([run for run in side if run is not None] for side in sides)
            if len(one) == len(other) == repeat:
                count = int(one[0]["profile"]["load"]["schedule"]["count"])
                found = [
                    [numbers_of(run).get(measure.name) for run in side] for side in (one, other)
                ]
                values = [tuple(each for each in side if each is not None) for side in found]
                if all(len(side) == repeat for side in values):
                    yield Pairs(nodes, window, count, measure, *values)


def summary(name: str, results: Mapping[str, Mapping[str, Any]]) -> Summary:
    rows: list[Sequence[str]] = []
    for measure in _measures(name):
        for each in pairs(results, measure):
            cells = [measure.name, f"{each.nodes}", f"{each.window}", f"{each.count:,}"]
            cells += [
                significant(statistics.median(side)) for side in (each.standalone, each.native)
            ]
            cells.append(str(each.ratio))
            rows.append([*cells, "" if measure.is_cost else f"{PREDECESSOR[name]:g}"])
    return Summary(
        title=f"{name}: standalone nodes (messagebus) and a native cluster (quorum queues), by turns; ratio "
        "above 1: standalone nodes do better",
        head=(
            "",
            "nodes",
            "window",
            "messages each",
            "standalone",
            "native",
            "ratio, 95 %",
            "2013",
        ),
        rows=rows,
        notes=NOTES,
        faults=faults_of(results),
    )


NOTES = (
    "2013: MessageBus over a native HornetQ cluster, two hosts (reported, not repeated: with Artemis and "
    "HornetQ on one machine it was 1.2 and 1.1 to 1.7).",
    "All on one machine: its cores are shared by nodes and load, so what is compared is the work a "
    "message costs, not what more hosts would add. CPU is that of the brokers alone: balancer and "
    "agents, which the standalone side has besides, share the cores and are not in it.",
)


def figures(name: str, results: Mapping[str, Mapping[str, Any]], command: str) -> Iterator[Figure]:
    """Make the figures: measure.seed_s1.n2_w50.ratio and the like."""
    for measure in _measures(name):
        for each in pairs(results, measure):
            group = f"measure.{name.replace('-', '_')}.n{each.nodes}_w{each.window}"
            about = f"{name}, {each.nodes} nodes, window {each.window}, 50 x {each.count:,} of 1 KB"
            for part, values, what, unit in (
                ("standalone", each.standalone, "standalone nodes", measure.unit),
                ("native", each.native, "a native cluster, quorum", measure.unit),
                ("ratio", each.ratios, _of_what(name, measure), "times"),
            ):
                what = f"{about}: {measure.name}, {what}"
                yield Maker(group, command)(f"{measure.part}_{part}", what, values, unit)


def _of_what(name: str, measure: Measure) -> str:
    if measure.is_cost:
        return "native over standalone"
    return f"standalone over native (2013: {PREDECESSOR[name]})"


def _measures(name: str) -> list[Measure]:
    return [CONFIRMED, DELIVERED, CPU] if name == "seed-s2" else [CONFIRMED, CPU]
