"""The command ``python -m bench once``: orders that are billed once, whatever dies meanwhile.

Three brokers behind HAProxy, PostgreSQL with outbox and inbox, Redis with a replica and sentinels. Relays
publish each message to two brokers. Everything is killed at random. `bench.trials.once_judge` judges the
rows in the database.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import options
from bench.errors import BenchError, DoesNotHold
from bench.processes import wait_until
from bench.trials import once_app
from bench.trials.once_judge import (
    KILLED,
    S_NS,
    STOOD,
    STORE_AWAY,
    Effect,
    Happening,
    Rule,
    Verdict,
    judge_effects,
)
from bench.trials.once_site import (
    APPLICATION,
    FAULTS,
    PROCESS_FAULTS,
    PROGRAMS,
    SERVER_FAULTS,
    Site,
)
from bench.trials.soak import draws
from messagebus import BusConfig, count_parked
from messagebus.recording.manifest import write_whole
from ops.local.cluster import LocalCluster
from ops.local.single import server_factory

BROKERS, MINUTES = 3, 30.0
# Table -> its rule, and what it is for a person.
RULES: Mapping[str, tuple[Rule, str]] = {
    "bills": ("inbox", "billed, with outbox and inbox"),
    "ledger": ("inbox", "booked by the next message, with both"),
    "points": ("dedup", "points, with Dedup in Redis"),
}
# Between two faults, at most; shorter in a run that is.
EVERY_S, EVERY_SHARE = 4.0, 0.05
# The longest wait for what is missing, while nothing more comes; what is there stays so for QUIET_S.
STALLED_S, QUIET_S = 120.0, 5.0
LOOK_S = 1.0


@click.command("once", epilog="Example: python -m bench once --minutes 1.5 --orders 2000")
@options.number("--minutes", default=MINUTES, help="Duration of the faults.", least=0.1)
@options.number("--orders", default=100_000, help="Number in that time.", least=100)
@options.seed
@click.option(
    "--defect", default="", type=click.Choice(("", *once_app.DEFECTS)), help="Plant this fault."
)
@options.folder("Default: a temporary one.")
@options.network
def once(
    minutes: float, orders: int, seed: int, defect: str, folder: Path | None, network: str
) -> None:
    """Kill brokers, HAProxy, agents, Redis, PostgreSQL, relays, applications and workers at random.

    Exit code 0: every committed order has one effect where an inbox is; where deduplication alone is, each
    second effect has one of its named causes; and every kind of fault happened. With a planted fault the
    exit code must be another one.
    """
    console = Console(highlight=False, soft_wrap=True)
    place = (folder or Path(tempfile.mkdtemp(prefix="messagebus-once-"))).resolve()
    console.print(f"seed {seed}, {minutes:g} min, {orders:,} orders, in {place}")
    cluster = LocalCluster(place / "cluster", BROKERS, network=network, say=console.print)
    hosts = (f"{network}.{number}" for number in range(201, 255))
    with cluster.running(), server_factory(place / "servers", hosts) as make:
        site = Site(cluster, place, make, console.print)
        trial = Trial(site, place, seconds=minutes * 60, orders=orders, seed=seed, defect=defect)
        verdict = trial.run(say=console.print)
    write_whole(place / "verdict.json", json.dumps(verdict.as_json(), indent=1))
    console.print(table_of(verdict))
    for line in lines_of(verdict, site):
        console.print(line)
    if verdict.faults:
        raise DoesNotHold(f"seed {seed}: {'; '.join(verdict.faults[:20])}; kept in {place}")
    console.print("the promise holds")
    if folder is None:
        shutil.rmtree(place)


class Trial:
    """One run on a site, whose processes note what they know in a folder.

    defect: one of `once_app.DEFECTS`, planted; "" for none.
    """

    def __init__(
        self,
        site: Site,
        folder: Path,
        *,
        seconds: float,
        orders: int,
        seed: int,
        defect: str = "",
    ) -> None:
        self._site, self._folder = site, folder
        self._seconds, self._orders, self._seed = seconds, orders, seed
        self._defect = defect
        self._failed: list[BaseException] = []

    def run(self, *, say: Callable[[str], None]) -> Verdict:
        """Do the run and judge it. Raises BenchError and LocalFault when it cannot be done."""
        site, began_s = self._site, time.monotonic()
        try:
            total = int(self._orders / (1 - once_app.ROLLED_BACK))
            site.start(total=total, seconds=self._seconds, defect=self._defect)
            processes = threading.Thread(target=self._break, args=(PROCESS_FAULTS, 1), daemon=True)
            processes.start()
            self._break(SERVER_FAULTS, 0)
            processes.join()
            if self._failed:
                raise self._failed[0]
            took_s = time.monotonic() - began_s
            say(f"faults for {took_s:.0f} s, and no more: what is open is waited for")
            self._wait(lambda now: now["orders"] >= self._orders, of=("orders",), quiet_s=0)
            site.fleet.stop([APPLICATION])
            if not self._wait(_is_done, of=(*RULES, "orders", "messagebus_outbox")):
                say(f"nothing more comes: {self._counts()}")
            try:
                wait_until(
                    lambda: not site.copies(),
                    within_s=STALLED_S,
                    what=lambda: f"no copy waits: {site.copies()}",
                    moves=site.copies,
                )
            except BenchError as fault:
                say(str(fault))
            site.fleet.stop([kind for kind in PROGRAMS if kind != APPLICATION])
            return self._judged()
        finally:
            site.fleet.end()

    def _break(self, faults: Collection[str], salt: int) -> None:
        """Do these faults one after the other, each at least once, until the time is over."""
        chance = random.Random(self._seed + salt)
        most_s = min(EVERY_S, self._seconds * EVERY_SHARE)
        draw = draws(self._seed + salt, ["any"], faults)
        until_s, done = time.monotonic() + self._seconds, 0
        try:
            while not self._failed and (time.monotonic() < until_s or done < len(faults)):
                self._site.do(draw()[0], chance.randrange(1 << 16))
                done += 1
                time.sleep(chance.uniform(0, most_s))
        except BaseException as fault:
            self._failed.append(fault)

    def _counts(self) -> dict[str, int]:
        counts = {"messagebus_outbox": "count(*)", **dict.fromkeys(("orders", *RULES), DISTINCT)}
        with self._site.connected() as connection:
            rows = {
                table: connection.execute(f"SELECT {count} FROM {table}".encode()).fetchone()
                for table, count in counts.items()
            }
        return {table: int(row[0]) for table, row in rows.items() if row}

    def _wait(
        self,
        condition: Callable[[Mapping[str, int]], bool],
        *,
        of: Collection[str],
        quiet_s: float = QUIET_S,
    ) -> bool:
        """Wait for a condition on the counts that holds so long. Returns False when nothing more comes.

        of: tables whose changes are something.
        """
        before, since_s = dict[str, int](), time.monotonic()
        while True:
            now = self._counts()
            if (seen := {table: now[table] for table in of}) != before:
                before, since_s = seen, time.monotonic()
            stood_s, holds = time.monotonic() - since_s, condition(now)
            if holds and stood_s >= quiet_s:
                return True
            if stood_s > STALLED_S:
                return False
            time.sleep(LOOK_S)

    def _judged(self) -> Verdict:
        site = self._site
        bus = BusConfig.from_env(site.cluster.client_env())
        parked = count_parked(bus, [*once_app.TABLES.values()]).counts
        done, failed = noted_done(self._folder), set(noted(self._folder, "failed"))
        with site.connected() as connection:
            last = connection.execute("SELECT last_value FROM order_numbers").fetchone()
            orders = {row[0] for row in connection.execute("SELECT number FROM orders")}
            tables = [
                judge_effects(
                    table,
                    rule,
                    orders,
                    (
                        Effect(number, run, process, ended_ns, received_ns, done.get((process, id)))
                        for number, run, process, ended_ns, received_ns, id in connection.execute(
                            f"SELECT {EFFECT} FROM {table}".encode()
                        )
                    ),
                    happenings=[*site.happened, *noted_happenings(self._folder)],
                    failed_runs=failed,
                    lease_s=once_app.LEASE_S,
                )
                for table, (rule, _) in RULES.items()
            ]
        assert last is not None
        return Verdict(
            orders=len(orders),
            rolled_back=int(last[0]) - len(orders),
            copies=len(noted(self._folder, "copies")),
            parked=sum(each.count for each in parked),
            tables=tables,
            kills={kind: site.counts[kind] for kind in FAULTS},
        )


DISTINCT = "count(DISTINCT number)"
EFFECT = "number, run, process, ended_ns, received_ns, message_id"


def _is_done(now: Mapping[str, int]) -> bool:
    """Return whether no order misses an effect, and nothing waits in the outbox."""
    return not now["messagebus_outbox"] and all(now[table] >= now["orders"] for table in RULES)


def noted_done(folder: Path) -> dict[tuple[str, str], int]:
    """Return (process, message id) -> when its store had answered to the first `done`."""
    found: dict[tuple[str, str], int] = {}
    for process, line in _notes(folder, "done"):
        message_id, at_ns = line.split()
        found.setdefault((process, message_id), int(at_ns))
    return found


def noted(folder: Path, what: str) -> list[str]:
    """Return the lines that all processes have noted in a run's folder."""
    return [line for _, line in _notes(folder, what)]


def noted_happenings(folder: Path) -> list[Happening]:
    """Return the pauses of processes, and the times without the store, that they have noted themselves."""
    found, away_ns = [], dict[str, int]()
    for process, line in _notes(folder, "stood"):
        began_ns, ended_ns = map(int, line.split())
        found.append(Happening(STOOD, process, began_ns, ended_ns))
    for process, line in _notes(folder, "store"):
        word, at_ns = line.split()
        if word == "away":
            # It is noted when a call has failed.
            away_ns.setdefault(process, int(at_ns) - S_NS)
        elif process in away_ns:
            found.append(Happening(STORE_AWAY, process, away_ns.pop(process), int(at_ns)))
    now_ns = time.monotonic_ns()
    return found + [Happening(STORE_AWAY, name, at, now_ns) for name, at in away_ns.items()]


def _notes(folder: Path, what: str) -> Iterator[tuple[str, str]]:
    """Yield process, line."""
    for file in sorted(folder.glob(f"{what}.*")):
        for line in file.read_text().splitlines():
            yield file.name.partition(".")[2], line


def table_of(verdict: Verdict) -> Table:
    """Return the counts of each way, for the terminal."""
    title = f"{verdict.orders:,} orders were committed, {verdict.rolled_back:,} were not"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for number, column in enumerate(("", "effects", "lost", "extra", "doubled", "no cause")):
        table.add_column(column, justify="right" if number else "left", no_wrap=number > 0)
    for each in verdict.tables:
        lost, extra, without = len(each.missing), len(each.extra), len(each.unexplained)
        counts = (each.effects, lost, extra, each.doubled, without)
        table.add_row(RULES[each.name][1], *(f"{count:,}" for count in counts))
    return table


def lines_of(verdict: Verdict, site: Site) -> list[str]:
    """Return what else is known, for the terminal."""
    (causes,) = [each.causes for each in verdict.tables if each.rule == "dedup"]
    killed = sum(each.kind == KILLED for each in site.happened)
    away_ns = [each.ended_ns - each.began_ns for each in site.happened if each.kind == STORE_AWAY]
    return [
        "faults: " + ", ".join(f"{kind} {count}" for kind, count in verdict.kills.items()),
        f"processes ended {killed}, of them by themselves {site.fleet.ended_alone}; "
        f"longest failover of Redis {max(away_ns, default=0) / S_NS:.1f} s",
        f"copies that were not run again, behind inboxes: {verdict.copies:,}; parked: {verdict.parked}",
        "causes of doubles behind deduplication: "
        + (", ".join(f"{why} {count}" for why, count in causes.items()) or "no double"),
    ]
