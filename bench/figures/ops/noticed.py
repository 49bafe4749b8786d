"""The effects of an operator's acts on clients: gaps of publishers, messages lost and doubled, uneven spread.

They are taken from recorded events. Publishers that hold connections and renew them show how evenly the
balancer has spread them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.audit import longest_gap
from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_most
from bench.rows import Events, Row
from lb.runtime import servers
from messagebus import BusConfig, Publisher, PublisherConfig
from messagebus.recording.manifest import Incident
from ops.local.cluster import LocalCluster

# Together with the load's publishers 36, which two, three, four or six brokers can share evenly.
RESTING = 32
LIFETIME_S = 10
# A connection is renewed within 20 % of its lifetime; the old one is closed after that.
JITTER, LET_GO_S = 0.2, 1.0
START_S = 30.0


@contextmanager
def resting(cluster: LocalCluster) -> Iterator[None]:
    """Run publishers without load whose connections live for LIFETIME_S."""
    bus = BusConfig.from_env(cluster.client_env())
    config = PublisherConfig(connection_lifetime_s=LIFETIME_S)
    with ExitStack() as stack:
        for _ in range(RESTING):
            publisher = Publisher(bus, config)
            publisher.start(require="one", timeout_s=START_S)
            stack.callback(publisher.stop)
        yield


def a_lifetime_passes() -> None:
    """Wait until each present connection has been renewed."""
    time.sleep(LIFETIME_S * (1 + JITTER) + LET_GO_S)


def sessions(cluster: LocalCluster) -> Mapping[str, int]:
    """Return a broker's name -> connections through HAProxy. Raises BalancerUnreachable."""
    found = servers(cluster.layout.front.admin_socket)
    return {name: state.sessions for name, state in found.items()}


def unevenness(sessions: Mapping[str, int]) -> float:
    """Return the largest deviation of a broker's connections from an even share, in per cent."""
    even = sum(sessions.values()) / len(sessions)
    return 100 * max(abs(count - even) for count in sessions.values()) / even


GOAL_GAP_S, GOAL_ATTACH_S, GOAL_SPREAD = 0.25, 2.0, 20.0
S = 1e9


@dataclass(frozen=True, slots=True)
class Act:
    """An act of an operator. name: part of the figures' ids. words: arguments after ``python -m``."""

    name: str
    what: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Took:
    """The times of a command: its begin, its end, and the end of watching its effect. Monotonic."""

    from_ns: int
    done_ns: int
    until_ns: int

    @property
    def seconds(self) -> float:
        return (self.done_ns - self.from_ns) / S


@dataclass(slots=True)
class Run:
    """The measurements taken during a run; the others come from the recorded events."""

    consumers: int
    quiet: Took
    acts: list[tuple[Act, list[Took]]]
    attached_s: float
    sessions: Mapping[str, int]
    killed: Incident


def attach_s(attached: Mapping[str, Mapping[str, int]], broker: str, from_ns: int) -> float:
    """Return the time until the last consumer had a link to this broker. Raises BenchError if one has none.

    attached: consumer -> broker -> time of attaching.
    """
    if missing := [name for name, links in attached.items() if broker not in links]:
        raise BenchError(f"not attached to {broker}: {', '.join(missing)}")
    return (max(links[broker] for links in attached.values()) - from_ns) / S


def figures_of(run: Run, events: Events, repeat: str) -> Iterator[Figure]:
    make, silence = Maker("ops", repeat), "longest time of a publisher without a confirm"
    quiet_s = max(gaps_s(events, run.quiet).values())
    what = f"Nothing is done for {run.quiet.seconds:.0f} s: {silence}"
    yield make("quiet.gap_s", what, quiet_s, "s")
    for act, times in run.acts:
        excess = excess_s([gaps_s(events, took) for took in times], quiet_s)
        what = f"{act.what}: {silence}, above that of the quiet period, worst of {len(excess)}"
        yield make(f"{act.name}.gap_s", what, excess, "s", (at_most, GOAL_GAP_S), max)
        seconds = [round(took.seconds, 3) for took in times]
        yield make(f"{act.name}.s", f"{act.what}: the whole command", seconds, "s", of=max)
    what = (
        f"Broker added: from the push of the list until all {run.consumers} consumers are attached "
        "to it"
    )
    yield make("add.attach_s", what, run.attached_s, "s", (at_most, GOAL_ATTACH_S))
    what = (
        "Broker added, one lifetime of a connection later: farthest broker from an even share of "
        f"{sum(run.sessions.values())} publishers"
    )
    yield make("add.spread", what, unevenness(run.sessions), "%", (at_most, GOAL_SPREAD))
    missing = lost(events)
    on_disk = [row for row in missing if _lay_on_its_disk(row, run.killed)]
    what = "Confirmed messages lost in all of these, but for what lay on the disk of the broker that died"
    yield make("lost", what, len(missing) - len(on_disk), "messages", (at_most, 0))
    twice = doubled(events.delivered, until_ns=run.killed.at_ns)
    what = "Messages delivered twice while nobody is killed"
    yield make("doubled", what, twice, "messages", (at_most, 0))
    confirmed = sum(row["outcome"] == "confirmed" for row in events.published)
    what = f"Dead broker replaced: confirmed messages that lay on its disk, of {confirmed:,} in the run"
    yield make("replace.on_disk", what, len(on_disk), "messages")


def gaps_s(events: Events, took: Took) -> dict[str, float]:
    """Return publisher -> its longest time without a confirm in that time, while one was awaited.

    A silence that began in that time counts whole. Raises BenchError when one never ended.
    """
    found = {}
    for name in sorted({row["publisher"] for row in events.published}):
        rows = [row for row in events.published if row["publisher"] == name]
        later = (row.get("confirmed_ns") or 0 for row in rows)
        ended_ns = min((each for each in later if each > took.until_ns), default=None)
        if ended_ns is None:
            raise BenchError("a publisher had no confirm any more")
        found[name] = longest_gap(rows, ended_ns, took.from_ns).length_ns / S
    return found


def excess_s(gaps: Sequence[Mapping[str, float]], quiet_s: float) -> list[float]:
    """Return the gaps above quiet: the worst publisher's of each run, or all publishers' of a single run."""
    found = gaps[0].values() if len(gaps) == 1 else [max(each.values()) for each in gaps]
    return [round(gap_s - quiet_s, 4) for gap_s in found]


def lost(events: Events) -> list[Row]:
    """Return the confirmed publishes that were delivered to no consumer."""
    reached = {row["message_id"] for row in events.delivered}
    return [
        row
        for row in events.published
        if row["outcome"] == "confirmed" and row["message_id"] not in reached
    ]


def _lay_on_its_disk(row: Row, killed: Incident) -> bool:
    """Return whether the killed broker confirmed it; the new broker in its place confirms later."""
    return bool(row["broker"] == killed.broker and row["confirmed_ns"] <= (killed.done_ns or 0))


def doubled(delivered: Iterable[Row], *, until_ns: int) -> int:
    """Count deliveries beyond the first of a message, before that time."""
    before = [row["message_id"] for row in delivered if row["received_ns"] < until_ns]
    return len(before) - len(set(before))
