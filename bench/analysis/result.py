"""The result of a run: rates, percentiles, fates, costs, and whether it measured the system or itself.

It is made from the files of a run's folder alone, so it can be made again at any time. ``result.json``
has every number. The histograms are HdrHistogram's own logs, which its usual tools read. Comparisons and
summaries go by `NUMBERS`; an unknown number is left out, never 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hdrh.log import HistogramLogWriter

from bench.analysis.verdict import Client, behind, bottlenecks, unsteady
from bench.errors import InputInvalid
from bench.harness import sampling
from bench.harness.coordinator import MACHINE, SAMPLES
from bench.harness.histograms import (
    SECOND_NS,
    Bins,
    Counts,
    Latencies,
    binned,
    histogram,
    summed,
)
from bench.harness.outcomes import Fates, Published, Received, first_places, judge, repeats_ns
from bench.harness.parts import (
    CONSUMER,
    PUBLISHER,
    Part,
    read_parts,
    read_published,
    read_received,
    unreadable,
)
from bench.harness.sampling import CPU_LEAST_S, Busy, Row, Sample, Usage, usage
from bench.harness.workers import PROFILE, RUN
from bench.load.profile import Profile, topic_of
from bench.load.schedule import Constant, Poisson
from messagebus.clock import NS_PER_MS
from messagebus.files import replace_file
from messagebus.terminal import plural


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a result that is compared.

    judged: whether a worse value is a regression. of_messages: whether a run lacks it only without messages.
    """

    name: str
    more_is_better: bool
    judged: bool = True
    of_messages: bool = True


NUMBERS = (
    Number("confirmed a second", more_is_better=True),
    Number("delivered a second", more_is_better=True),
    Number("confirm p50", more_is_better=False),
    Number("confirm p99", more_is_better=False),
    Number("delivery p50", more_is_better=False),
    Number("delivery p99", more_is_better=False),
    Number("client CPU us", more_is_better=False, of_messages=False),
    Number("broker CPU us", more_is_better=False, of_messages=False, judged=False),
)


def numbers_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return name -> value of the `NUMBERS` in the content of ``result.json``."""
    profile = result["profile"]
    found = {"confirmed a second": float(result["confirmed_per_s"])}
    delivered = result.get("delivered_per_s")
    if delivered is not None and profile["load"]["consumers"]:
        found["delivered a second"] = float(delivered)
    for measure in ("confirm", "delivery"):
        percentiles = result["percentiles_ms"].get(measure, {})
        found |= {
            f"{measure} {name}": float(percentiles[name])
            for name in ("p50", "p99")
            if name in percentiles
        }
    measured_s = float(result.get("measured_s") or profile["time"]["measured_s"])
    messages = found["confirmed a second"] * measured_s
    costs = {
        "client CPU us": _client_s(result, measured_s),
        "broker CPU us": _broker_s(result, measured_s),
    }
    return found | {
        name: cpu_s / messages * 1e6
        for name, cpu_s in costs.items()
        if cpu_s is not None and messages
    }


def _client_s(result: Mapping[str, Any], measured_s: float) -> float | None:
    """Return the clients' CPU time. In a closed loop each part has its own duration.

    There, consumers take longer than publishers.
    """
    clients = result["clients"]
    closed = result["profile"]["load"]["schedule"]["kind"] == "closed"
    if not clients or (closed and any("seconds" not in each for each in clients)):
        return None
    return sum(
        float(each["cpu_share"]) * float(each.get("seconds", measured_s)) for each in clients
    )


def _broker_s(result: Mapping[str, Any], measured_s: float) -> float | None:
    """Return the brokers' CPU time for the messages, over the whole measured part.

    None if a broker was not sampled to the end, or the time is too short: the other brokers' CPU time is
    not what the messages cost. A short time without samples is extrapolated.
    """
    brokers = result["brokers"]
    if len(brokers) < result["profile"]["system"]["brokers"] or measured_s < CPU_LEAST_S:
        return None
    costs = [
        each["messages_cpu_s"]
        if "messages_cpu_s" in each
        else float(each["cpu_s"]) / float(each["seconds"]) * measured_s
        for each in brokers.values()
    ]
    return None if None in costs else sum(map(float, costs))


RESULT = "result.json"
# Broker of the confirms of a native cluster: its clients do not know which node took a message.
ANY_NODE = ""
MEASURES = {
    "confirm": "publish: intended to confirmed",
    "service": "publish: sent to confirmed",
    "delivery": "end to end: intended to received",
    "pacing": "pacing: due to looked at",
}
# fmt: off
CURVE = (0, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.995, 99.999, 100)
# fmt: on
# Entries of `run.json` from the start of a run on.
ABOUT = {"environment", "durability", "complete", "faults"}


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of one run.

    latencies: measure -> latencies of the measured seconds and the others, by a message's intended time.
    counts: "confirm" and "delivery", by time of arrival, repeats included; "repeat": repeated deliveries;
    "never": publishes without a confirm, by their intended time. published: the publishes of each publisher.
    fates: None for a run that was cut short. faults: why the run's numbers are not to be trusted, or what it
    lost.
    """

    folder: Path
    profile: Profile
    about: dict[str, Any]
    parts: list[Part]
    latencies: dict[str, Latencies]
    counts: dict[str, Counts]
    fates: Fates | None
    samples: list[Sample]
    busy: list[Busy]
    clients: list[Client] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)

    @property
    def measured(self) -> range:
        """The measured seconds, by a message's intended time."""
        if self.profile.load.is_closed:
            return range(math.ceil(self.measured_s))
        begin = int(self.profile.time.warm_up_s)
        return range(begin, begin + max(1, int(self.profile.time.measured_s)))

    @property
    def measured_s(self) -> float:
        """The length of the measured part; in a closed loop, from the first message to the last confirm."""
        if self.profile.load.is_closed:
            return self._busy_s(PUBLISHER)
        return float(len(self.measured))

    def _busy_s(self, kind: str) -> float:
        return max((part.busy_s for part in self.parts if part.kind == kind), default=0.0)

    def bins(self, measure: str, broker: str | None = None) -> Bins:
        return self.latencies[measure].whole(self.measured, broker)

    def rates(self, measure: str) -> dict[str, list[int]]:
        """Return broker -> confirms, or deliveries, in each second of the whole load."""
        return self.counts[measure].by_broker()

    def came(self, measure: str) -> int:
        """Return the confirms, or first deliveries, in the measured part; in a closed loop all of them."""
        within = None if self.profile.load.is_closed else self.measured
        repeats = self.counts["repeat"].total(within) if measure == "delivery" else 0
        return self.counts[measure].total(within) - repeats

    def never(self) -> int:
        """Return the unconfirmed publishes intended in the measured part; in a closed loop all of them."""
        within = None if self.profile.load.is_closed else self.measured
        return self.counts["never"].total(within)

    def silence_s(self, around_ns: tuple[int, int] | None = None) -> float | None:
        """Return the longest time in the measured seconds in which a publisher waited for a confirm.

        around_ns: begin of an incident and the latest begin of a silence that belongs to it, since the load
        began. Such a silence counts from its own begin, in the warm-up too. None if no publisher recorded it.
        """
        until_ns = self.measured.stop * SECOND_NS
        from_ns = 0 if around_ns else self.measured.start * SECOND_NS
        found = [each.silence_ns(from_ns, until_ns, around_ns) for each in self.published]
        known = [each for each in found if each is not None]
        return max(known) / SECOND_NS if known else None

    def around(
        self, began_ns: int, until_ns: int
    ) -> tuple[dict[str, float], dict[str, float], int | None]:
        """Return percentiles of confirms before an incident and after it, and the publishes without one.

        Before: since the warm-up. The rule is that of `Published.around`; None: no publisher recorded it.
        """
        warm_ns = int(self.profile.time.warm_up_s) * SECOND_NS
        found = [each.around(began_ns, until_ns, warm_ns) for each in self.published]
        known = [each for each in found if each is not None]
        before, after = (
            percentiles(binned(np.concatenate([each[side] for each in known]))) if known else {}
            for side in (0, 1)
        )
        return before, after, sum(each[2] for each in known) if known else None

    @property
    def per_s(self) -> float:
        """Confirmed messages a second in the measured part."""
        return _rate(self.came("confirm"), self.measured_s)

    @property
    def delivered_per_s(self) -> float:
        """Deliveries a second in the measured part; in a closed loop, until the last one."""
        closed = self.profile.load.is_closed
        return _rate(self.came("delivery"), self._busy_s(CONSUMER) if closed else self.measured_s)

    @property
    def earlier(self) -> int:
        """Deliveries of messages that an earlier run had left."""
        return sum(part.earlier for part in self.parts)

    @property
    def faults(self) -> list[str]:
        machine = self.machine
        return [
            *self.about["faults"],
            # What else runs here delays no load elsewhere.
            *bottlenecks(
                self.clients, machine.others if machine and not self._is_elsewhere else ""
            ),
            *(self.fates.faults if self.fates else []),
            *self._lacking,
        ]

    @property
    def _lacking(self) -> list[str]:
        """The faults of an incomplete run. A steady state is required only without disturbances."""
        if not self.came("confirm"):
            return ["nothing was confirmed in the measured part"]
        if self.fates is None:
            return []
        found = []
        if open_ends := self.fates.published - self.fates.confirmed:
            found.append(f"{plural(open_ends, 'publish')} did not end confirmed")
        if not self.profile.load.is_closed:
            found += self._behind
        if self._is_even and not self.profile.disturbances:
            totals = [sum(each) for each in zip(*self.rates("confirm").values(), strict=True)]
            found += unsteady(totals[self.measured.start : self.measured.stop])
        return found

    @property
    def _behind(self) -> list[str]:
        load, confirmed = self.profile.load, self.came("confirm")
        waits_for_consumers = not load.consumers or load.consume_from_s > 0
        subscriptions = 0 if waits_for_consumers else self.profile.messages.subscriptions
        intended = sum(self.bins("pacing").values())
        expected, delivered = confirmed * subscriptions, self.came("delivery")
        return behind(intended, confirmed, expected, delivered, self.measured_s)

    @property
    def _is_even(self) -> bool:
        """True if the schedule itself has a steady rate."""
        return isinstance(self.profile.load.schedule, Constant | Poisson)

    @property
    def brokers(self) -> dict[str, dict[str, Any]]:
        """The cost by broker in the measured part; in a closed loop from the first sample to the last.

        Work after the last confirm, deliveries above all, belongs to the messages too. messages_cpu_s: CPU
        time of the messages. It and cpu_us are None if the measured part is too short, or has no sample of
        the broker.
        """
        begin_s = float(self.measured.start)
        window = (begin_s, begin_s + self.measured_s)
        if self.profile.load.is_closed:
            times = [each.at_s for each in self.samples]
            window = (min(times, default=0.0), max(times, default=0.0))
        found = sampling.totals(self.samples, *window)
        confirmed = self.rates("confirm")
        for broker, each in found.items():
            count = sum(confirmed.get(broker, [])[self.measured.start : self.measured.stop])
            each["confirmed"] = count
            # Scaled to the whole window, in case a little of it has no samples.
            cpu_s = each["cpu_s"] / each["seconds"] * (window[1] - window[0])
            is_seen = each["memory_mib"] is not None
            is_told = is_seen and self.measured_s >= sampling.CPU_LEAST_S
            each["messages_cpu_s"] = cpu_s if is_told else None
            each["cpu_us"] = cpu_s / count * 1e6 if count and is_told else None
        return found

    @property
    def broker_names(self) -> list[str]:
        """The brokers that were sampled, or confirmed any message, in order."""
        names = {each.broker for each in self.samples} | {*self.rates("confirm")}
        return sorted(names - {ANY_NODE})

    @property
    def idle_brokers(self) -> list[str]:
        """The brokers that confirmed nothing in the whole load; none where confirms do not name a broker."""
        confirmed = {name for name, each in self.rates("confirm").items() if any(each)}
        if not confirmed or ANY_NODE in confirmed:
            return []
        return [name for name in self.broker_names if name not in confirmed]

    @property
    def machine(self) -> Usage | None:
        """The use of the machine in the measured part; None without samples."""
        brokers = self.brokers.values()
        return usage(
            self.busy,
            self.measured,
            cores=self.about["environment"]["cores"],
            brokers=sum(each["cpu_s"] / each["seconds"] for each in brokers),
            clients=None if self._is_elsewhere else sum(each.cpu_share for each in self.clients),
        )

    @property
    def _is_elsewhere(self) -> bool:
        """True if the load processes were on other hosts."""
        return "load_hosts" in self.about["environment"]

    def as_json(self) -> dict[str, Any]:
        return {
            "profile": self.profile.as_json(),
            **self.about,
            "faults": self.faults,
            "measured_s": self.measured_s,
            "confirmed_per_s": self.per_s,
            "delivered_per_s": self.delivered_per_s,
            "percentiles_ms": {
                measure: percentiles(self.bins(measure)) for measure in self.latencies
            },
            "by_broker_ms": {
                broker: percentiles(self.bins("confirm", broker))
                for broker in self.rates("confirm")
            },
            "never_confirmed": self.never(),
            "longest_silence_s": self.silence_s(),
            "below_zero": {name: each.below_zero for name, each in self.latencies.items()},
            "fates": self.fates.as_json() if self.fates else None,
            "of_an_earlier_run": self.earlier,
            "clients": [
                {**asdict(each), "seconds": part.measured_s}
                for each, part in zip(self.clients, self.parts, strict=True)
            ],
            "brokers": self.brokers,
            "machine": asdict(machine) if (machine := self.machine) else None,
            "rates": {measure: self.rates(measure) for measure in ("confirm", "delivery")},
        }

    def save(self) -> None:
        """Write result.json, and a log of histograms per second for each measure."""
        replace_file(self.folder / RESULT, json.dumps(self.as_json(), indent=1))
        for name, latencies in self.latencies.items():
            _write_log(self.folder / f"{name}.hlog", latencies)


def gather(folder: Path) -> Result:
    """Read a run's folder. Raises InputInvalid when it is none.

    For a run that was cut short, read the parts of the processes that came to their end.
    """
    try:
        about = json.loads((folder / RUN).read_text())
        profile = Profile.from_values(json.loads((folder / PROFILE).read_text()), PROFILE)
    except OSError as fault:
        said = f"{Path(fault.filename or folder).name}: {fault.strerror}"
        raise InputInvalid(f"{folder}: not the folder of a run: {said}") from fault
    except ValueError as fault:
        raise InputInvalid(f"{folder}: not the folder of a run: {fault}") from fault
    if not isinstance(about, dict) or not about.keys() >= ABOUT:
        raise InputInvalid(f"{folder}: not the folder of a run: {RUN} is not of a run")
    if about.get("outside"):
        raise InputInvalid(f"{folder}: of a load of its own, which has no parts to gather")
    parts = read_parts(folder)
    if broken := unreadable(folder, about.get("parts", ())):
        about |= {"complete": False, "faults": [*about["faults"], *broken]}
    latencies = {measure: Latencies(0) for measure in MEASURES}
    counts = {measure: Counts(0) for measure in ("confirm", "delivery")}
    for part in parts:
        counts["confirm" if part.kind == PUBLISHER else "delivery"].merge(part.counts)
        for measure, rows in part.latencies.items():
            latencies[measure].merge(rows)
            latencies[measure].below_zero += part.below_zero[measure]
    published, received = read_published(folder, parts), read_received(folder, parts)
    latencies["delivery"] = _first_deliveries(received)
    counts |= {"never": Counts(0), "repeat": Counts(0)}
    for each in published.values():
        counts["never"].add("", each.unconfirmed_ns)
    counts["repeat"].add("", repeats_ns(received))
    outcomes = {publisher: each.outcomes for publisher, each in published.items()}
    fates = judge(outcomes, received, partial(topic_of, profile))
    return Result(
        folder=folder,
        profile=profile,
        about=about,
        parts=parts,
        latencies=latencies,
        counts=counts,
        # Parts of a run do not tell whether the other messages are lost.
        fates=fates if about["complete"] else None,
        samples=_sampled(folder / SAMPLES, Sample, about),
        busy=_sampled(folder / MACHINE, Busy, about),
        clients=[_client(part, profile) for part in parts],
        published=list(published.values()),
    )


def _first_deliveries(received: Sequence[Received]) -> Latencies:
    """Return the latencies of deliveries; those of repeats, which consumers cannot know of, are in none."""
    found = Latencies(0)
    for each, first in zip(received, first_places(received), strict=True):
        for number, broker in enumerate(each.names):
            own = first & (each.brokers == number)
            intended = each.intended_ns[own]
            found.add(broker, intended, each.received_ns[own] - intended)
    return found


def _sampled(path: Path, kind: type[Row], about: dict[str, Any]) -> list[Row]:
    """Read a file of samples. A spoilt file is a fault of the run, and no row of it counts."""
    try:
        return sampling.load(path, kind)
    except InputInvalid as fault:
        about["faults"] = [*about["faults"], str(fault)]
        return []


def percentiles(bins: Mapping[int, int]) -> dict[str, float]:
    """Return p50 -> ms, for percentiles that the count supports: one sample lies beyond, or the maximum."""
    total = sum(bins.values())
    if not total:
        return {}
    wanted = [each for each in CURVE if each == 100 or total * (100 - each) / 100 >= 1]
    found = histogram(bins).get_percentile_to_value_dict(wanted)
    return {f"p{each:g}": value / NS_PER_MS for each, value in found.items()} | {"samples": total}


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _client(part: Part, profile: Profile) -> Client:
    warm_s, time = profile.time.warm_up_s, profile.time
    rows = [row for row in part.latencies.get("pacing", []) if row["second"] >= warm_s]
    pacing = summed(dict(row["bins"]) for row in rows)
    p99 = histogram(pacing).get_value_at_percentile(99) / NS_PER_MS if pacing else 0.0
    return Client(
        name=part.name,
        cpu_share=part.cpu_s / part.measured_s if part.measured_s else 0.0,
        pacing_p99_ms=p99,
        intended=part.intended if part.kind == PUBLISHER else 0,
        unsent=max(0, part.intended - part.sent),
        per_process=part.per_process,
        waited=part.waited_s / (time.warm_up_s + time.measured_s),
    )


def _write_log(path: Path, latencies: Latencies) -> None:
    """Write a log in HdrHistogram's own format, a line per second; values in ns."""
    seconds = sorted({second for second, _ in latencies.bins})
    with path.open("w") as file:
        log = HistogramLogWriter(file)
        log.output_log_format_version()
        log.output_base_time(0)
        log.output_legend()
        for second in seconds:
            made = histogram(latencies.whole(range(second, second + 1)))
            made.set_start_time_stamp(second * 1000)
            made.set_end_time_stamp((second + 1) * 1000)
            log.output_interval_histogram(made, max_value_unit_ratio=1)
