"""Orders that are billed once, whatever dies meanwhile: servers, programs and links.

Three brokers behind HAProxy, PostgreSQL with outbox and inbox, Redis with a replica and sentinels. Relays
publish each message to two brokers. Everything is killed at random. `once_judge` judges the
rows in the database.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from bench.errors import BenchError
from bench.processes import wait_until
from messagebus import BusConfig
from messagebus.admin import count_parked
from tests.support.trials import once_app
from tests.support.trials.once_judge import (
    S_NS,
    STOOD,
    STORE_AWAY,
    Effect,
    Happening,
    Rule,
    Verdict,
    judge_effects,
)
from tests.support.trials.once_site import (
    APPLICATION,
    FAULTS,
    PROCESS_FAULTS,
    PROGRAMS,
    SERVER_FAULTS,
    Site,
)
from tests.support.trials.soak import draws

# Table -> its rule: outbox and inbox, both again one message later, Dedup in Redis.
RULES: Mapping[str, Rule] = {"bills": "inbox", "ledger": "inbox", "points": "dedup"}
# Between two faults, at most; shorter in a run that is.
EVERY_S, EVERY_SHARE = 4.0, 0.05
# The longest wait for what is missing, while nothing more comes; what is there stays so for QUIET_S.
STALLED_S, QUIET_S = 120.0, 5.0
LOOK_S = 1.0


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
                for table, rule in RULES.items()
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
