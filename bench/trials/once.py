"""The command ``python -m bench once``: orders that are billed once, whatever dies meanwhile.

Three brokers behind HAProxy, PostgreSQL with outbox and inbox, Redis with a replica and sentinels. Relays
publish each message to two brokers. Everything is killed at random, a hand-made outbox and a hand-made
deduplication beside it. `bench.trials.once_judge` judges.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import options
from bench.audit import Audit, audit
from bench.audit_report import disagreements, read_report
from bench.environment import describe
from bench.errors import BenchError, DoesNotHold
from bench.figures.figure import Figure, Maker, at_least, at_most
from bench.figures.results import keep
from bench.processes import run as run_to_end
from bench.processes import wait_until
from bench.rows import read_events
from bench.trials import once_app
from bench.trials.once_judge import (
    KILLED,
    STOOD,
    STORE_AWAY,
    Counted,
    Rule,
    Verdict,
    judge_effects,
)
from bench.trials.once_rows import (
    JUDGED,
    effects_of,
    noted,
    noted_done,
    noted_happenings,
    read_rows,
    write_events,
)
from bench.trials.once_site import (
    APPLICATION,
    FAULTS,
    NUMBERS,
    PROCESS_FAULTS,
    SERVER_FAULTS,
    Site,
)
from bench.trials.soak import draws
from messagebus import BusConfig, count_parked
from messagebus.recording.manifest import write_whole
from ops.local.cluster import LocalCluster

BROKERS, MINUTES = 3, 30.0
RULES: Mapping[str, Rule] = {
    **{"bills": "inbox", "ledger": "inbox", "points": "dedup"},
    **{"setnx": "control", "polled": "control"},
}
WHAT = {
    "bills": "billed, with outbox and inbox",
    "ledger": "booked by the next message, with both",
    "points": "points, with Dedup in Redis",
    "setnx": "by hand: SETNX and expire",
    "polled": "by hand: an outbox and its poller",
}
# Of all numbers so many are not committed.
UNCOMMITTED = once_app.ROLLED_BACK
# Between two faults, at most; shorter in a run that is.
EVERY_S, EVERY_SHARE = 4.0, 0.05
# The longest wait for what is missing, while nothing more comes; what is there stays so for QUIET_S.
STALLED_S, QUIET_S = 60.0, 5.0
# The controls handle one message at a time: after ours, they get at least so long, and this share of the run.
CONTROLS_S, CONTROLS_SHARE = 30.0, 0.2
LOOK_S = 1.0
SPARK_WITHIN_S = 600.0


@click.command(
    "once",
    epilog="Example: python -m bench once --minutes 1.5 --orders 2000",
)
@options.number("--minutes", default=MINUTES, help="So long there are faults.", least=0.1)
@options.number("--orders", default=100_000, help="So many are made in that time.", least=100)
@click.option("--seed", type=int, help="Of the faults. Default: one that is printed.")
@click.option("--spark/--no-spark", default=True, help="Audit by Spark too.")
@click.option(
    "--defect", default="", type=click.Choice(("", *once_app.DEFECTS)), help="Plant this fault."
)
@options.keep
@options.folder("Default: a temporary one.")
@options.network
def once(
    minutes: float,
    orders: int,
    seed: int | None,
    spark: bool,
    defect: str,
    publish: bool,
    folder: Path | None,
    network: str,
) -> None:
    """Kill brokers, HAProxy, agents, Redis, PostgreSQL, relays, applications and workers at random.

    Exit code 0: every committed order has one effect where an inbox is; where deduplication alone is, each
    second effect has one of its named causes; every kind of fault happened; the audits agree. Two controls,
    made by hand, are counted beside it. With a planted fault the exit code must be another one.
    """
    console = Console(highlight=False, soft_wrap=True)
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    place = (folder or Path(tempfile.mkdtemp(prefix="messagebus-once-"))).resolve()
    command = f"python -m bench once --minutes {minutes:g} --orders {orders} --seed {seed}"
    console.print(f"seed {seed}, {minutes:g} min, {orders:,} orders, in {place}")
    environment = describe()
    cluster = LocalCluster(place / "cluster", BROKERS, network=network, say=console.print)
    trial = Trial(
        cluster, place / "run", seconds=minutes * 60, orders=orders, seed=seed, defect=defect
    )
    with cluster.running():
        trial.run(say=console.print)
    verdict, ours = trial.judge()
    faults = [*verdict.faults, *differences(verdict, ours)]
    if spark:
        faults += spark_differences(place / "run", ours)
    console.print(table_of(verdict))
    for line in lines_of(verdict, trial.site):
        console.print(line)
    id = "once.trial" if minutes == MINUTES else f"once.trial{minutes:g}"
    figures = figures_of(verdict, f"{minutes:g} min of kills", command, id=id)
    path = keep(id, figures, environment, publish=publish)
    console.print(f"figures: {path}")
    if faults:
        raise DoesNotHold(f"seed {seed}: {'; '.join(faults[:20])}; kept in {place}")
    console.print("the promise holds" + (", and Spark's audit agrees" if spark else ""))
    if folder is None and publish:
        shutil.rmtree(place)


class Trial:
    """One run in a folder of its own. defect: one of `once_app.DEFECTS`, planted; "" for none."""

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        *,
        seconds: float,
        orders: int,
        seed: int,
        defect: str = "",
    ) -> None:
        folder.mkdir(parents=True)
        self._cluster, self._folder = cluster, folder
        self._seconds, self._orders, self._seed = seconds, orders, seed
        self._defect = defect
        self._failed: list[BaseException] = []
        self._rows: Mapping[str, list[dict[str, Any]]] = {}
        self._last = self._parked = self._began_ns = 0
        self._brokers: list[str] = []
        self._not_waited_for: set[str] = set()

    def run(self, *, say: Callable[[str], None]) -> None:
        """Do the run, and read what came of it. Raises BenchError and LocalFault when it cannot be done."""
        self.site = site = Site(self._cluster, self._folder, say=say)
        self._brokers, self._began_ns = self._cluster.brokers, time.monotonic_ns()
        with site.running():
            total = int(self._orders / (1 - UNCOMMITTED))
            site.start(total=total, seconds=self._seconds, defect=self._defect)
            began_s = time.monotonic()
            processes = threading.Thread(target=self._break, args=(PROCESS_FAULTS, 1), daemon=True)
            processes.start()
            self._break(SERVER_FAULTS, 0)
            processes.join()
            if self._failed:
                raise self._failed[0]
            say(
                f"faults for {time.monotonic() - began_s:.0f} s, and no more: what is open is waited for"
            )
            self._wait_all_ordered()
            site.fleet.stop([APPLICATION])
            self._wait_all_done(say)
            self._wait_for_controls(say)
            parked = count_parked(
                BusConfig.from_env(self._cluster.client_env()),
                [*once_app.PLACES, *once_app.PLACES_OF_CONTROLS],
            )
            site.fleet.stop(NUMBERS)
            with site.connected() as connection:
                self._rows = read_rows(connection)
                last = connection.execute("SELECT last_value FROM order_numbers").fetchone()
        assert last is not None
        self._last, self._parked = int(last[0]), sum(each.count for each in parked.counts)

    def judge(self) -> tuple[Verdict, Audit]:
        """Judge what `run` has read. Nothing needs to run any more."""
        verdict = self._judged()
        write_whole(self._folder / "verdict.json", json.dumps(verdict.as_json(), indent=1))
        manifest = write_events(
            self._folder / "events",
            self._rows,
            brokers=self._brokers,
            incidents=self.site.incidents,
            began_ns=self._began_ns,
        )
        return verdict, audit(manifest, read_events(self._folder / "events", manifest))

    def _break(self, faults: Mapping[str, object], salt: int) -> None:
        """Do these faults one after the other, each at least once, until the time is over."""
        chance = random.Random(self._seed + salt)
        most_s = min(EVERY_S, self._seconds * EVERY_SHARE)
        draw = draws(self._seed + salt, ["any"], faults)
        until_s, done = time.monotonic() + self._seconds, 0
        try:
            while not self._failed and (time.monotonic() < until_s or done < len(faults)):
                self.site.do(draw()[0], chance.randrange(1 << 16))
                done += 1
                time.sleep(chance.uniform(0, most_s))
        except BaseException as fault:
            self._failed.append(fault)

    def _counts(self) -> dict[str, int]:
        with self.site.connected() as connection:
            counts = {}
            for table in ("orders", "messagebus_outbox", *RULES):
                row = connection.execute(
                    f"SELECT count(DISTINCT number) FROM {table}".encode()
                    if table != "messagebus_outbox"
                    else b"SELECT count(*) FROM messagebus_outbox"
                ).fetchone()
                assert row is not None
                counts[table] = int(row[0])
        return counts

    def _wait_all_ordered(self) -> None:
        """Wait until all orders are made; or no more are."""
        self._wait(lambda now: now["orders"] >= self._orders, quiet_s=0)

    def _wait_all_done(self, say: Callable[[str], None]) -> None:
        """Wait until no order misses an effect and no copy waits; or nothing more comes."""

        def is_done(now: Mapping[str, int]) -> bool:
            return not now["messagebus_outbox"] and all(
                now[table] >= now["orders"] for table in JUDGED
            )

        if not self._wait(is_done, quiet_s=QUIET_S, of=("orders", "messagebus_outbox", *JUDGED)):
            say(f"nothing more comes: {self._counts()}")
        try:
            wait_until(
                lambda: not self.site.copies(),
                within_s=STALLED_S,
                what=lambda: f"no copy waits: {self.site.copies()}",
            )
        except BenchError as fault:
            say(str(fault))

    def _wait_for_controls(self, say: Callable[[str], None]) -> None:
        """Wait until the controls, made by hand, miss nothing or are quiet: not longer than their share."""
        until_s = time.monotonic() + max(CONTROLS_S, self._seconds * CONTROLS_SHARE)
        for table in (name for name, rule in RULES.items() if rule == "control"):
            has_all = self._wait(
                lambda now, table=table: now[table] >= now["orders"],  # type: ignore[misc]
                quiet_s=0,
                of=(table,),
                until_s=until_s,
            )
            if not has_all and time.monotonic() > until_s:
                self._not_waited_for.add(table)
                say(f"{WHAT[table]}: not waited for any longer")

    def _wait(
        self,
        condition: Callable[[Mapping[str, int]], bool],
        *,
        quiet_s: float,
        of: Collection[str] = ("orders",),
        until_s: float = math.inf,
    ) -> bool:
        """Wait for a condition on the counts that holds so long. Returns False when nothing more comes.

        of: tables whose changes are something. until_s: returns False then, at the latest.
        """
        before, since_s = dict[str, int](), time.monotonic()
        while True:
            now = self._counts()
            if (seen := {table: now[table] for table in of}) != before:
                before, since_s = seen, time.monotonic()
            stood_s, holds = time.monotonic() - since_s, condition(now)
            if holds and stood_s >= quiet_s:
                return True
            if stood_s > STALLED_S or time.monotonic() > until_s:
                return False
            time.sleep(LOOK_S)

    def _judged(self) -> Verdict:
        rows = self._rows
        orders = {row["number"] for row in rows["orders"]}
        happenings = [*self.site.happened, *noted_happenings(self._folder)]
        failed, done = set(noted(self._folder, "failed")), noted_done(self._folder)
        tables = [
            judge_effects(
                table,
                rule,
                orders,
                effects_of(rows[table], done if rule == "dedup" else {}),
                happenings=happenings,
                failed_runs=failed,
                lease_s=once_app.LEASE_S,
            )
            for table, rule in RULES.items()
        ]
        for each in tables:
            each.waited_for = each.name not in self._not_waited_for
        return Verdict(
            orders=len(orders),
            rolled_back=self._last - len(orders),
            copies=len(noted(self._folder, "copies")),
            parked=self._parked,
            tables=tables,
            kills={kind: self.site.counts[kind] for kind in FAULTS},
        )


def differences(verdict: Verdict, ours: Audit) -> list[str]:
    """Describe each count of the judge that the audit of the recorded events has otherwise."""
    found = {(each.topic, each.subscription): each for each in ours.subscriptions}
    pairs = []
    for table in (each for each in verdict.tables if each.name in JUDGED):
        entry = found[once_app.TABLES[table.name]]
        doubled = sum(entry.doubled.values())
        pairs.append((f"{table.name} effects", table.effects, entry.deliveries))
        if table.name != "ledger":  # its messages are those of bills, doubled ones too
            pairs += [
                (f"{table.name} doubled", table.doubled, doubled),
                (f"{table.name} expected", table.expected, entry.expected),
                (f"{table.name} missing", len(table.missing), entry.lost),
                (f"{table.name} extra", len(table.extra), entry.orphans),
            ]
    return [
        f"{what}: {own} here, {other} in the audit" for what, own, other in pairs if own != other
    ]


def spark_differences(folder: Path, ours: Audit) -> list[str]:
    """Describe each number that Spark's audit of a run's folder has otherwise. Raises BenchError."""
    argv = [sys.executable, "-m", "spark", "report", "--events", str(folder / "events")]
    try:
        run_to_end([*argv, "--out", str(folder / "spark")], within_s=SPARK_WITHIN_S, what="Spark")
    except BenchError:
        # It ends so, too, when it finds a fault; then its audit is there.
        if not (folder / "spark" / "audit.json").exists():
            raise
    return [f"Spark: {each}" for each in disagreements(ours, read_report(folder / "spark"))]


def table_of(verdict: Verdict) -> Table:
    """Return the counts of each way, for the terminal."""
    title = f"{verdict.orders:,} orders were committed, {verdict.rolled_back:,} were not"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for number, column in enumerate(("", "effects", "lost", "extra", "doubled", "no cause")):
        table.add_column(column, justify="right" if number else "left", no_wrap=number > 0)
    for each in verdict.tables:
        lost = f"{'' if each.waited_for else '<= '}{len(each.missing):,}"
        without = "" if each.rule == "control" else f"{len(each.unexplained):,}"
        table.add_row(
            *(WHAT[each.name], f"{each.effects:,}", lost),
            *(f"{len(each.extra):,}", f"{each.doubled:,}", without),
        )
    return table


def lines_of(verdict: Verdict, site: Site) -> list[str]:
    """Return what else is known, for the terminal."""
    causes = next(each.causes for each in verdict.tables if each.rule == "dedup")
    kinds = ", ".join(f"{kind} {count}" for kind, count in verdict.kills.items())
    ends = {kind: sum(each.kind == kind for each in site.happened) for kind in (KILLED, STOOD)}
    away = [each for each in site.happened if each.kind == STORE_AWAY and not each.process]
    longest_s = max(((each.ended_ns - each.began_ns) / 1e9 for each in away), default=0.0)
    return [
        f"faults: {kinds}",
        f"processes ended {ends[KILLED]}, of them by themselves {site.fleet.ended_alone}; "
        f"longest failover of Redis {longest_s:.1f} s",
        f"copies that were not run again, behind inboxes: {verdict.copies:,}; parked: {verdict.parked}",
        "causes of doubles behind deduplication: "
        + (", ".join(f"{why} {count}" for why, count in causes.items()) or "no double"),
    ]


def figures_of(
    verdict: Verdict, what: str, command: str, *, id: str = "once.trial"
) -> tuple[Figure, ...]:
    """Return the figures of a run. id: the beginning of theirs."""
    make, faults = Maker(id, command), sum(verdict.kills.values())
    found = [
        make("orders", f"{what}: orders committed", verdict.orders, "orders", (at_least, 1)),
        make("faults", f"{what}: faults of {len(verdict.kills)} kinds", faults, "faults"),
        make("rolled_back", f"{what}: transactions rolled back", verdict.rolled_back, "orders"),
        make("copies", f"{what}: copies not run again", verdict.copies, "messages"),
    ]
    for each in verdict.tables:
        found += _figures_of_table(each, f"{what}: {WHAT[each.name]}", make)
    return tuple(found)


def _figures_of_table(each: Counted, what: str, make: Maker) -> list[Figure]:
    goal = None if each.rule == "control" else (at_most, 0.0)
    lost = "lost" if each.waited_for else "lost, or not waited for"
    found = [
        make(f"{each.name}.lost", f"{what}: {lost}", len(each.missing), "orders", goal),
        make(
            f"{each.name}.extra", f"{what}: of no committed order", len(each.extra), "orders", goal
        ),
        make(
            f"{each.name}.doubled",
            f"{what}: doubled",
            each.doubled,
            "effects",
            goal if each.rule == "inbox" else None,
        ),
    ]
    if each.rule == "dedup":
        count = len(each.unexplained)
        found.append(
            make(
                f"{each.name}.unexplained",
                f"{what}: doubled without a cause",
                count,
                "effects",
                goal,
            )
        )
    return found
