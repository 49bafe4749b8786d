"""Workloads of several runs: latency matrix, fan-in, a capacity model's grid, other systems.

Each is the steps of its runs, and a `Table` of rows and columns, from which summary and figures are made.

Fan-in is one load on more and more brokers. ``python -m spark capacity`` fits its model from the folders of
the grid's runs: sizes, fan-outs, rates, durabilities on one broker. CPU time of a message counts there, not
the rate: so its runs may be slow, and the machine need not be quiet.

Peers are the same two loads on other systems beside ours; every line states the meaning of a confirm. The
first is a paced load for latencies, which also warms up Java programs. The second is as fast as a window
allows, on the same start of the system.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.result import numbers_of
from bench.analysis.series import (
    Step,
    Summary,
    faults_of,
    in_rounds,
    middle,
    samples,
    trusted,
    turns_of,
)
from bench.figures.figure import Figure, Maker
from bench.harness.sampling import CPU_LEAST_S
from bench.load.profile import Profile, System
from bench.load.schedule import Closed, Constant
from bench.load.systems import SYSTEMS
from reports.page import Bar
from reports.text import significant

Run = Mapping[str, Any]
"""The content of a run's ``result.json``."""
LEAST_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of a table. step: the name of its runs. cells: its first cells, and the label of its bars.

    id, words: the beginning of its figures' ids, and their description, with {} for the column's words and
    {rate} for the load's; "" for a line without figures. measure: of the latencies in it.
    """

    step: str
    cells: tuple[str, ...]
    id: str = ""
    words: str = ""
    measure: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the medians of a value of all runs of a line.

    id, words, unit: of its figures; "" for none. suffix: what follows a row's step. bar: whether it is in the
    chart. trusted: whether a figure needs runs without faults.
    """

    head: str
    value: Callable[[Row, Run], float | None]
    id: str = ""
    words: str = ""
    unit: str = "us"
    suffix: str = ""
    bar: bool = False
    trusted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A workload's table. name: the beginning of its figures' ids. head: of the rows' own cells."""

    name: str
    head: tuple[str, ...]
    rows: Sequence[Row]
    columns: Sequence[Column]
    left: int
    bars_title: str
    note: str
    says_durability: bool = False

    def summary(self, results: Mapping[str, Run]) -> Summary:
        """Summarize the medians of all runs. A line without a run is left out."""
        lines: list[Sequence[str]] = []
        bars: list[Bar] = []
        meant: dict[str, str] = {}
        for row in self.rows:
            turns = [turns_of(results, row.step + column.suffix) for column in self.columns]
            if not any(turns):
                continue
            values = [
                middle([column.value(row, run) for run in some])
                for column, some in zip(self.columns, turns, strict=True)
            ]
            lines.append((*row.cells, *map(significant, values)))
            drawn = [each for each in zip(self.columns, values, strict=True) if each[0].bar]
            for look, (column, value) in enumerate(drawn):
                if value is not None:
                    label = ", ".join((*row.cells, *([column.words] * (len(drawn) > 1))))
                    text = f"{significant(value)} {column.unit}"
                    bars.append(Bar.of(label, value, text, look))
            if self.says_durability:
                meant[row.words.removesuffix(": {}")] = next(
                    str(some[0]["durability"]) for some in turns if some
                )
        return Summary(
            head=(*self.head, *(column.head for column in self.columns)),
            rows=lines,
            left=self.left,
            bars_title=self.bars_title,
            bars=bars,
            notes=[self.note],
            meant=meant or None,
            faults=faults_of(results),
        )

    def figures(self, results: Mapping[str, Run], command: str) -> Iterator[Figure]:
        """Make the figures of all columns that have some."""
        make = Maker(self.name, command)
        for row in (row for row in self.rows if row.id):
            for column in (column for column in self.columns if column.id):
                turns = turns_of(results, row.step + column.suffix)
                turns = trusted(turns) if column.trusted else turns
                if values := samples(column.value(row, run) for run in turns):
                    rate = turns[0]["profile"]["load"]["schedule"].get("rate_per_s", 0.0)
                    what = row.words.replace("{}", column.words).format(rate=f"{rate:g}/s")
                    yield make(row.id + column.id, what, values, column.unit)


def _number(name: str) -> Callable[[Row, Run], float | None]:
    return lambda _row, run: numbers_of(run).get(name)


def shorter(profile: Profile, part: int) -> Profile:
    """Return the profile measured for a part of its time; 10: a tenth, in whole seconds, some at least."""
    time = profile.time
    measured_s = max(min(time.measured_s, LEAST_S), float(round(time.measured_s / part)))
    warm_up_s = min(time.warm_up_s, measured_s)
    return dataclasses.replace(
        profile, time=dataclasses.replace(time, measured_s=measured_s, warm_up_s=warm_up_s)
    )


MATRIX_PROFILES = (
    "latency-256",
    "latency-1024",
    "latency-5120",
    "latency-1024-25",
    "latency-1048576",
)
MEASURES = (
    ("confirm", "corrected", "from the intended time"),
    ("service", "uncorrected", "from the sending"),
    ("delivery", "end to end", ""),
)


def matrix_steps(profiles: Iterable[Profile], repeat: int = 1, part: int = 1) -> list[Step]:
    return in_rounds([Step(each.name, shorter(each, part)) for each in profiles], repeat)


def _percentile(name: str) -> Callable[[Row, Run], float | None]:
    return lambda row, run: run["percentiles_ms"].get(row.measure, {}).get(name)


def _rate_once(row: Row, run: Run) -> float | None:
    return float(run["confirmed_per_s"]) if row.measure == "confirm" else None


MATRIX = Table(
    name="measure.latency_matrix",
    head=("", "ms"),
    rows=[
        Row(
            step=name,
            cells=(name, words),
            id=f"{name.removeprefix('latency-')}.{measure}_" if since else "",
            words=f"Latency matrix, {name}: {{}} until confirmed, {since}",
            measure=measure,
        )
        for name in MATRIX_PROFILES
        for measure, words, since in MEASURES
    ],
    columns=[
        Column("confirmed/s", _rate_once),
        Column("samples", _percentile("samples")),
        *(
            Column(
                *(name, _percentile(name), f"{name}_ms" * (name in ("p50", "p99", "p99.9")), name),
                unit="ms",
                bar=name == "p99",
                trusted=True,
            )
            for name in ("p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "p100")
        ),
    ],
    left=2,
    bars_title="99 of 100 messages took no longer",
    note="Corrected: from the intended time. Uncorrected: from the sending, as in most tools.",
)

BROKERS = (1, 2, 4, 8)


def fan_in_steps(base: Profile, repeat: int = 1, part: int = 1) -> list[Step]:
    """Return the steps of the same load on more and more brokers, in rounds."""
    base = shorter(base, part)
    systems = [dataclasses.replace(base.system, brokers=brokers) for brokers in BROKERS]
    once = [
        Step(f"{system.brokers}-brokers", dataclasses.replace(base, system=system))
        for system in systems
    ]
    return in_rounds(once, repeat)


CLIENT_CPU = Column("client CPU us", _number("client CPU us"), "client_cpu_us", "client", bar=True)
BROKER_CPU = Column("broker CPU us", _number("broker CPU us"), "broker_cpu_us", "broker", bar=True)
FAN_IN = Table(
    name="measure.fan_in",
    head=("brokers",),
    rows=[
        Row(
            step=f"{brokers}-brokers",
            cells=(f"{brokers}",),
            id=f"{brokers}_brokers.",
            words=f"Fan-in, {{rate}} over {brokers} brokers: {{}} CPU of a message",
        )
        for brokers in BROKERS
    ],
    columns=[
        Column("confirmed/s", _number("confirmed a second")),
        *(CLIENT_CPU, BROKER_CPU),
        Column("confirm p50 ms", _number("confirm p50")),
        Column("p99 ms", _number("confirm p99")),
    ],
    left=0,
    bars_title="CPU of a message",
    note="CPU us: of a message, of all clients and of all brokers together. A broker at rest costs CPU too, "
    "which the same few messages have to bear.",
)

DURABILITIES = ("fsync", "page-cache")
# Bytes, subscriptions, messages a second. Rates ten times apart separate the cost of a broker at rest from
# that of messages, and show the model's error at a rate that it has not seen.
GRID = (
    *((100, 1, 1000), (100, 1, 300), (100, 1, 100), (100, 2, 900), (100, 4, 500)),
    *((1_000, 1, 1000), (2_000, 2, 300), (2_000, 4, 500), (4_000, 1, 600)),
    *((8_000, 3, 300), (16_000, 1, 300), (16_000, 2, 500), (16_000, 4, 200)),
)


def capacity_steps(base: Profile, repeat: int = 1, part: int = 1) -> list[Step]:
    """Return the runs of the grid. part: a broker's CPU time needs some seconds, however short they are."""
    time = base.time
    measured_s = max(CPU_LEAST_S, float(round(time.measured_s / part)))
    base = dataclasses.replace(base, time=dataclasses.replace(time, measured_s=measured_s))
    return [
        step
        for durability in DURABILITIES  # the runs of one share a start of the broker
        for step in in_rounds([_cell_step(base, durability, *each) for each in GRID], repeat)
    ]


def _cell_step(base: Profile, durability: str, size: int, fan_out: int, rate: int) -> Step:
    # A topic for each fan-out: on the broker that they share, the subscriptions of other runs stay.
    places = tuple(f"load{fan_out}/sink{number}" for number in range(fan_out))
    profile = dataclasses.replace(
        base,
        name=f"{base.name}-{_cell(durability, size, fan_out, rate)}",
        system=dataclasses.replace(base.system, durability=durability),
        messages=dataclasses.replace(
            base.messages, size=size, subscriptions=fan_out, places=places
        ),
        load=dataclasses.replace(base.load, schedule=Constant(rate_per_s=rate), consumers=fan_out),
    )
    return Step(_cell(durability, size, fan_out, rate), profile)


def _cell(durability: str, size: int, fan_out: int, rate: int) -> str:
    return f"{durability}-{size}-x{fan_out}-{rate}"


CAPACITY = Table(
    name="measure.capacity",
    head=("durability", "bytes", "subscriptions", "rate"),
    rows=[
        Row(
            step=_cell(durability, size, fan_out, rate),
            cells=(durability, f"{size:,}", f"{fan_out}", f"{rate:,}"),
            id=f"{durability}.{size}_x{fan_out}_{rate}.",
            words=f"{size:,} B to {fan_out} at {rate}/s, {durability}: {{}} CPU of a message",
        )
        for durability in DURABILITIES
        for size, fan_out, rate in GRID
    ],
    columns=[
        BROKER_CPU,
        Column("client CPU us", _number("client CPU us")),
    ],
    left=1,
    bars_title="CPU of a message in the broker",
    note="CPU us: of one published message, with all of its deliveries.",
)

CLIENTS = ("messagebus", "pika", "aio-pika", "pika-blocking", "kombu", "perf-test")
OTHERS = ("kafka", "artemis", "nats", "redis-streams")
FSYNC, CACHE = DURABILITIES
# Brokers, durability, name of the system.
_ARMS = (
    *((1, FSYNC, name) for name in CLIENTS),
    *((1, each, name) for name in OTHERS for each in DURABILITIES),
    *((3, FSYNC, "messagebus"), (3, FSYNC, "native"), (3, CACHE, "native")),
    *((3, FSYNC, "kafka"), (3, CACHE, "kafka"), (3, FSYNC, "artemis-cluster")),
    *((3, FSYNC, "nats"), (3, CACHE, "nats")),
)
ARMS = tuple(
    System(name=name, brokers=brokers, durability=durability) for brokers, durability, name in _ARMS
)
PACED, FULL = "paced", "full"


def peers_steps(paced: Profile, full: Profile, repeat: int = 1, part: int = 1) -> list[Step]:
    """Return the steps of all arms, in rounds; part: 10 does a tenth."""
    assert isinstance(full.load.schedule, Closed)
    fewer = Closed(count=max(1, full.load.schedule.count // part))
    full = dataclasses.replace(full, load=dataclasses.replace(full.load, schedule=fewer))
    paced = shorter(paced, part)
    once = [
        Step(_of_arm(system) + kind, dataclasses.replace(base, system=system))
        for system in ARMS
        for kind, base in ((PACED, paced), (FULL, full))
        if kind == PACED or not SYSTEMS[system.name].own_load
    ]
    return in_rounds(once, repeat)


def _of_arm(system: System) -> str:
    return f"{system.name}-{system.brokers}-{system.durability}-"


def _latency(measure: str, own: str, name: str) -> Callable[[Row, Run], float | None]:
    """Return a percentile, of a system's own load the nearest one to it."""

    def value(_row: Row, run: Run) -> float | None:
        found: Mapping[str, Mapping[str, float]] = run["percentiles_ms"]
        return (found.get(measure) or found.get(own, {})).get(name)

    return value


_CONFIRM, _DELIVERY = ("confirm", "service"), ("delivery", "sent to received")
PEERS = Table(
    name="measure.peers",
    head=("system", "nodes", "on disk at confirm"),
    rows=[
        Row(
            step=_of_arm(system),
            cells=(
                system.name,
                f"{system.brokers}",
                "yes" if system.durability == "fsync" else "no",
            ),
            id=""
            if SYSTEMS[system.name].own_load
            else f"{_of_arm(system)[:-1].replace('-', '_')}.",
            words=f"{system.name}, {system.brokers} nodes, {system.durability}: {{}}",
        )
        for system in ARMS
    ],
    columns=[
        Column(
            *("full: confirmed/s", _number("confirmed a second"), "rate"),
            *("confirmed as fast as a window of 1000 lets it", "messages/s"),
            suffix=FULL,
            bar=True,
        ),
        Column("delivered/s", _number("delivered a second"), suffix=FULL),
        Column("client CPU us", _number("client CPU us"), suffix=FULL),
        Column("broker CPU us", _number("broker CPU us"), suffix=FULL),
        Column("paced: confirm p50 ms", _latency(*_CONFIRM, "p50"), suffix=PACED),
        Column(
            *(
                "p99",
                _latency(*_CONFIRM, "p99"),
                "confirm_p99_ms",
                "p99 until confirmed, at {rate}",
            ),
            unit="ms",
            suffix=PACED,
            trusted=True,
        ),
        Column("end to end p50 ms", _latency(*_DELIVERY, "p50"), suffix=PACED),
        Column("p99", _latency(*_DELIVERY, "p99"), suffix=PACED),
    ],
    left=1,
    bars_title="Confirmed a second, full load; on disk at the confirm: yes or no",
    note="Paced latencies are from the intended time; of PerfTest, whose load is its own, from the sending "
    "and of its whole run. Kafka's consumer may have a message before its publisher has the confirm. CPU us: "
    "of a message of the full load, all clients and all brokers together.",
    says_durability=True,
)
