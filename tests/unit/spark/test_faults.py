"""Faults planted in small runs, one run for many of them: every page and every exit code notices each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bench.audit import audit
from bench.load.bodies import Filler, stamped
from bench.rows import read_events
from messagebus.recording.events import FAULTS, body_hash
from messagebus.recording.manifest import read_manifest
from spark import command
from spark.__main__ import jobs
from spark.command import exit_code
from spark.jobs import compare, ingest
from spark.measures.faults import Fault, allowed, counted, standing
from spark.measures.run import Run
from tests.support.events import SECOND

HOUR = 3600.0
# 2026-11-18, 0:00.
START_NS = 1_794_960_000 * SECOND
DAY_S = 24 * HOUR
# Jobs of one run each; compare and ingest have arguments of their own.
PAGES = ("throughput", "latency", "audit", "imbalance", "backlog", "failover", "report")
HOST: dict[str, Any] = {"host": "h", "process": "p", "wall_minus_monotonic_ns": START_NS}


@dataclass
class Recorded:
    """Run that is written out. at: seconds since its start."""

    name: str
    end_s: float
    published: list[dict[str, Any]] = field(default_factory=list)
    delivered: list[dict[str, Any]] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    heads: dict[str, dict[str, Any]] = field(default_factory=dict)

    def publish(self, at: float, *, took_s: float = 0.005, **changed: Any) -> dict[str, Any]:
        number, own = len(self.published), changed.get("publisher", "p1")
        row: dict[str, Any] = {
            "run_id": self.name,
            "message_id": f"{number:032x}",
            "topic": "orders",
            "broker": "mb1",
            "publisher": "p1",
            "sequence": sum(each["publisher"] == own for each in self.published),
            "size": 5,
            "body_hash": "b" * 32,
            "outcome": "confirmed",
            "attempts": 1,
            "intended_ns": ns(at),
            "sent_ns": ns(at),
        } | changed
        if row["outcome"] == "confirmed":
            row.setdefault("confirmed_ns", row["sent_ns"] + ns(took_s))
        self.published.append(row)
        return row

    def deliver(
        self, row: dict[str, Any], after_s: float = 0.006, **changed: Any
    ) -> dict[str, Any]:
        same = ("run_id", "message_id", "topic", "broker", "size", "body_hash")
        at_ns = row["intended_ns"] + ns(after_s)
        made = {name: row[name] for name in same} | {
            **{"subscription": "billing", "consumer": "c1", "redelivered": 0, "ack": "acked"},
            **{"received_ns": at_ns, "acknowledged_ns": at_ns + 1},
            **changed,
        }
        self.delivered.append(made)
        return made

    def send(self, at: float, **changed: Any) -> dict[str, Any]:
        """Add a publish and, if it was confirmed, its delivery."""
        row = self.publish(at, **changed)
        if row["outcome"] == "confirmed":
            self.deliver(row)
        return row

    def write(self, folder: Path) -> Path:
        made = folder / self.name
        made.mkdir(parents=True, exist_ok=True)
        values = {
            "run_id": self.name,
            "topics": {"orders": ["billing"]},
            "brokers": ["mb1"],
            "anchor": HOST,
            "start_ns": 0,
            "end_ns": ns(self.end_s),
            "publishers": ["p1"],
            "consumers": [{"name": "c1", "subscription": "billing"}],
            "incidents": [],
            "loop": "open",
            "complete": True,
        } | self.manifest
        (made / "manifest.json").write_text(json.dumps(values))
        for kind, rows, by in (
            ("published", self.published, "publisher"),
            ("delivered", self.delivered, "consumer"),
        ):
            for process in sorted({row[by] for row in rows}):
                head = json.dumps({"anchor": self.heads.get(process, HOST)})
                own = [json.dumps(row) for row in rows if row[by] == process]
                (made / f"{kind}-{process}.ndjson").write_text("\n".join([head, *own, ""]))
        return made


def ns(at_s: float) -> int:
    return round(at_s * SECOND)


@dataclass
class Told:
    """Output of a job. first: the first line of its text."""

    code: int
    text: str
    html: str
    measured: dict[str, Any]

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def said(self) -> str:
        return " ".join(self.text.split())


@dataclass
class Asked:
    """Jobs by their command lines, over runs that are in one lake by then."""

    session: SparkSession
    root: Path
    compared: dict[str, dict[str, Any]]

    def counts(self, run: str) -> dict[str, int]:
        """Return the counts of `FAULTS` in a compared run, as the jobs of Spark found them.

        Clocks are left out: they concern a latency, and the audit without Spark has none.
        """
        rows = self.compared[run]["numbers"]
        found = {row["name"]: row["value"] for row in rows if row["name"] in FAULTS}
        return {name: count for name, count in found.items() if count and name != "clocks"}

    def counts_without_spark(self, run: str) -> dict[str, int]:
        manifest = read_manifest(self.root / run)
        return audit(manifest, read_events(self.root / run, manifest)).counts

    def read(self, run: Recorded) -> Told:
        run.write(self.root)
        return self("ingest", "", "--events", str(self.root / run.name))

    def __call__(self, job: str, run: str, *options: str) -> Told:
        out = self.root / "out" / job
        where = ["--run", run] if run else []
        lake = ["--lake", str(self.root / "lake")]
        if job == "report":
            where, lake = ["--events", str(self.root / run)], []
        code = exit_code(jobs, [job, *where, *lake, "--out", str(out), *options], prog_name="spark")
        self.session.catalog.clearCache()
        found = json.loads((out / f"{'audit' if job == 'report' else job}.json").read_text())
        text, html = ((out / f"{job}.{form}").read_text() for form in ("txt", "html"))
        return Told(code, text, html, found)


@pytest.fixture(scope="module")
def ask(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    @contextmanager
    def shared(*_: object) -> Iterator[SparkSession]:
        yield session

    measured: dict[str, dict[str, Any]] = {}
    measure = compare._measured

    def once(run: Run) -> dict[str, Any]:
        """Measure a run once: it does not change once compared, and one stands in every comparison."""
        name = run.manifest.run_id
        if name not in measured:
            measured[name] = measure(run)
        return measured[name]

    with pytest.MonkeyPatch.context() as changed:
        for module in (command, ingest, compare):
            changed.setattr(module, "session_for", shared)
        changed.setattr(compare, "_measured", once)
        yield Asked(session, tmp_path_factory.mktemp("faults"), measured)


def names(told: Sequence[str]) -> set[str]:
    """Return the names of faults, by their words."""
    return {name for name, words in FAULTS.items() for text in told if words in text}


# Some thirty jobs of Spark: minutes on a busy machine.
pytestmark = pytest.mark.timeout(1800)


def test_a_fault_is_its_words_and_can_be_allowed_by_its_name() -> None:
    faults = [*counted({"lost": 2, "late": 0, "early": 1_000}), "no name"]
    assert faults == [
        "2 confirmed and never delivered",
        "1,000 delivered before it was sent",
        "no name",
    ]
    assert standing(faults, ["lost"]) == faults[1:]
    assert allowed(faults, ["lost", "late"]) == ["Allowed: 2 confirmed and never delivered."]
    assert json.dumps(Fault("lost", "x")) == '"x"'


def steady(name: str, seconds: float = 60, **manifest: Any) -> Recorded:
    """Record a run of two messages a second."""
    made = Recorded(name, seconds, manifest=manifest)
    for number in range(int(2 * seconds)):
        made.send(number / 2)
    return made


def faulty(name: str) -> Recorded:
    """Record a minute without confirms from 10 to 40 s, after a kill, and with holes in the record."""
    kill = {"kind": "kill", "broker": "mb1", "at_ns": ns(10), "done_ns": ns(10)}
    made = Recorded(name, 60)
    for number in range(120):
        is_out = 10 <= number / 2 < 40
        made.send(number / 2, **({"outcome": "unknown", "broker": ""} if is_out else {}))
    made.publish(50.1, topic="alone")
    made.send(50.2, broker="mb9")
    made.manifest = {
        "incidents": [kill],
        "recorders": {
            "p1": {"share": 0.1, "dropped": 4800, "files_deleted": 0},
            "c1": {"share": 1.0, "dropped": 0, "files_deleted": 3},
        },
        "publishers": ["p1", "p2"],
        "topics": {"orders": ["billing", "audit"], "alone": []},
        "complete": False,
        "loop": "closed",
    }
    return made


def test_the_rate_is_told_of_the_load_and_of_the_run_that_waits_behind_it(ask: Asked) -> None:
    """Sixty publishes in half a minute; then the run waits for half a minute, or for a day."""
    made = steady("waits", 30)
    made.end_s = 60
    assert ask.read(made).code == 0
    made = steady("rare", 30)
    made.end_s = 86_400
    assert ask.read(made).code == 0
    assert ask("throughput", "waits").first.endswith(
        "Confirmed: 2.03/s while messages were sent (29.5 s), 1/s over the whole run (60 s), "
        "2 in the best second."
    )
    told = ask("throughput", "rare")
    assert "0.000694/s over the whole run (86,400 s)" in told.first
    assert " 0/s" not in told.said
    assert told.measured["load_s"] == pytest.approx(29.505)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_rows_that_are_missing_on_both_sides_are_holes_in_numbers(ask: Asked, share: float) -> None:
    """A file that an upload lost, with its publishes and deliveries; a sample has no holes either."""
    whole = steady(f"whole-{share}", 20)
    whole.manifest = {"recorders": {name: {"share": share} for name in ("p1", "c1")}}
    assert ask.read(whole).code == 0
    assert ask("throughput", whole.name).code == 0
    made = steady(f"holes-{share}", 20)
    made.manifest = whole.manifest
    for rows in (made.published, made.delivered):
        rows[10:20] = []
    folder = made.write(ask.root)
    for kind, process in (("published", "p1"), ("delivered", "c1")):
        file = folder / f"{kind}-{process}.ndjson"
        head, *lines = file.read_text().splitlines(keepends=True)
        for number, own in ((1, lines[:10]), (3, lines[10:])):
            (folder / f"{kind}-{process}-{number:04}.ndjson").write_text("".join([head, *own]))
        file.unlink()
    assert ask("ingest", "", "--events", str(folder)).code == 7
    for job in ("throughput", "audit", "failover") if share == 1 else ("throughput",):
        told = ask(job, made.name)
        assert told.code == 7
        faults = "; ".join(told.measured["faults"])
        assert f"10 {FAULTS['missing']}: 10 of p1" in faults
        assert "published-p1-0002.ndjson" in faults
        assert "delivered-c1-0002.ndjson" in faults
    assert ask.counts_without_spark(made.name) == {"missing": 10, "absent": 2}


@pytest.mark.parametrize("off_s", [5, -5])
def test_a_clock_that_is_off_is_told_and_no_wait_is_cut_to_nothing(ask: Asked, off_s: int) -> None:
    name = "ahead" if off_s > 0 else "behind"
    made = steady(name, 10)
    made.end_s = 20
    made.heads["c1"] = HOST | {"host": "h2", "wall_minus_monotonic_ns": START_NS + off_s * SECOND}
    assert ask.read(made).code == 0
    told, late = ask("backlog", name), ask("latency", name)
    assert "by 2 clocks" in told.html
    assert "by 2 clocks" in late.html
    assert "Times by 2 clocks" in told.first
    assert (told.code, late.code) == ((0, 0) if off_s > 0 else (7, 7))
    if off_s < 0:
        assert "20 messages came before the sending: clocks differ by 4.99 s" in told.said
        assert [row["age_ms"] for row in told.measured["drains"]] == [None]


@pytest.fixture(scope="module")
def there(ask: Asked) -> Asked:
    ask.read(steady("base"))
    made = faulty("faulty")
    (made.write(ask.root) / "published-p2.ndjson.gz").write_bytes(b"packed")
    assert ask.read(made).code == 7
    return ask


@pytest.mark.parametrize("job", PAGES)
def test_every_page_and_exit_code_notices_an_outage_and_what_the_record_leaves_out(
    there: Asked, job: str
) -> None:
    told = there(job, "faulty")
    assert told.code == 7
    faults = "; ".join(told.measured["faults"])
    for text in (
        "60 of 122 published without a confirm (60 unknown)",
        "the longest silence of a publisher lasted 30.0",
        "from 10.0 s on",
        f"4,800 {FAULTS['dropped']}",
        f"3 {FAULTS['deleted']}",
        "unlike shares of the messages: 0.1 and 1",
        f"1 {FAULTS['silent']}: p2",
        f"1 {FAULTS['unlisted']}: mb9",
        f"1 {FAULTS['unjudged']}",
        "published-p2.ndjson.gz cannot be read",
        "the run did not end in order",
    ):
        assert text in faults
    assert "A sample of 0.1 of the messages" in told.first
    assert "Nothing was received by orders/audit" in told.first
    assert "intended to" not in told.html
    assert all(text in told.html for text in ("60 of 122", "A sample of 0.1"))
    if job == "failover":
        assert "No publisher waited longer than 30.0" in told.first
        assert "60 publishes without a confirm (60 unknown)" in told.first
    elif job == "latency":
        assert "until the confirm; 60 of 122 publishes have none" in told.first
        # In between there is no line.
        assert {row["window"] for row in told.measured["timeline"]} == {*range(10), *range(40, 60)}
    elif job == "throughput":
        assert "1.03/s over the whole run (60 s)" in told.first
        assert "about 10.3/s of all messages" in told.said
    elif job == "audit":
        assert "The promise does not hold" in told.first
    elif job == "imbalance":
        assert told.measured["judged"]["brokers, messages confirmed"]["count"] == 2


@pytest.mark.parametrize("run", ["base", "faulty"])
def test_a_run_is_as_good_as_itself(there: Asked, run: str) -> None:
    told = there("compare", "", run, run, "--worse-max", "0")
    assert (told.code, told.measured["faults"]) == (0, [])
    assert {row["ratio"] for row in told.measured["rows"] if row["a"]} == {1.0}
    assert "The second is not worse." in told.text


def test_what_confirms_less_or_nothing_is_worse_than_any(
    there: Asked,
) -> None:
    none = Recorded("none", 10)
    for number in range(20):
        none.send(number / 2, outcome="unknown", broker="")
    there.read(none)
    outage = there("compare", "", "base", "faulty")
    assert outage.code == 7
    assert "confirmed a second, while messages were sent: 48% less" in outage.text
    assert "unconfirmed: 60 after 0" in outage.text
    assert "incomplete: 1 after 0" in outage.text
    assert there.counts("faulty") == there.counts_without_spark("faulty")
    nothing = there("compare", "", "base", "none")
    assert nothing.code == 7
    assert "the second confirmed nothing" in nothing.text
    assert "publish: intended to confirmed, p99: the second has none" in nothing.text
    assert "confirm_from" not in nothing.text
    assert there.compared["none"]["curves"] == {}
    assert "nothing was confirmed" in there("latency", "none").text
    # To the end of the run, which nothing is after.
    assert "No publisher waited longer than 10.00 s" in there("failover", "none").first


def strict(name: str) -> Recorded:
    """Record three hours with a kill in the middle, and one message for each leniency of an audit."""
    kill = {"kind": "kill", "broker": "mb1", "at_ns": ns(1.5 * HOUR), "done_ns": ns(1.5 * HOUR)}
    made = Recorded(name, 3 * HOUR)
    made.manifest = {
        "incidents": [kill],
        "publishers": ["p1", "p2", "p3"],
        "topics": {"orders": ["billing"], "parcels": ["stray"]},
    }
    copies = made.send(1, attempts=2)
    for repeat in range(10):
        made.deliver(copies, 2 + repeat)
    one = made.send(10)
    made.publish(11, publisher="p2", message_id=one["message_id"])
    made.deliver(made.publish(20, outcome="refused"))
    made.deliver(made.publish(21, outcome="unroutable"))
    for number in range(2):
        made.deliver(made.publish(30 + number), 2 - 2 * number)
    # A process that began anew, under its name, numbers from 0: nothing of it is late.
    for number in range(20):
        made.send(40 + number, publisher="p3", sequence=number % 10)
    # Two came with each other's body, of bodies as the loads of bench make them.
    one, other = (
        made.publish(
            70 + number / 2, body_hash=body_hash(stamped(Filler.of(bytes(40)), 1, number, ns(70)))
        )
        for number in range(2)
    )
    made.deliver(one, body_hash=other["body_hash"])
    made.deliver(other, body_hash=one["body_hash"])
    made.publish(71)
    ghost = made.publish(72, message_id="f" * 32)
    made.published.remove(ghost)
    made.deliver(ghost)
    made.deliver(made.send(73), topic="parcels", subscription="stray")
    # Acked more than an hour before the kill, and again more than an hour after it.
    made.deliver(made.send(0.1 * HOUR), 2.9 * HOUR)
    made.deliver(made.publish(1.2 * HOUR), -HOUR)
    return made


STRICT = {
    "unexplained": 10,
    **{"lost": 1, "altered": 2, "orphan": 1, "unexpected": 1},
    "reused": 1,
    "refused_delivered": 2,
    "early": 1,
    "late": 1,
}


@pytest.fixture(scope="module")
def judged(there: Asked) -> Asked:
    there.read(strict("strict"))
    return there


@pytest.mark.parametrize(
    ("job", "faults"),
    [
        ("latency", (f"1 {FAULTS['lost']}", "below zero: a clock went back")),
        ("failover", (f"1 {FAULTS['lost']}",)),
        ("backlog", ("not empty at the end: 1 were never taken out",)),
    ],
)
def test_every_page_that_knows_of_deliveries_notices_what_never_came(
    judged: Asked, job: str, faults: tuple[str, ...]
) -> None:
    told = judged(job, "strict", "--allow", "unconfirmed")
    assert told.code == 7
    for fault in faults:
        assert fault in "; ".join(told.measured["faults"])
        assert fault in told.html


@pytest.mark.parametrize("job", ["imbalance", "throughput"])
def test_pages_that_only_count_notice_what_never_came(there: Asked, job: str) -> None:
    made = Recorded("gone", 10)
    for number in range(5):
        made.send(number)
    made.publish(6)
    there.read(made)
    told = there(job, "gone", "--allow", "lost")
    assert (told.code, told.measured["faults"]) == (0, [])
    assert f"Allowed: at least 1 {FAULTS['lost']}" in told.first


def test_both_audits_are_as_strict_as_their_words_and_allow_by_name(judged: Asked) -> None:
    ask = judged
    wanted = {f"{count:,} {FAULTS[name]}" for name, count in STRICT.items()}
    allow = [word for name in (*STRICT, "unconfirmed", "clocks") for word in ("--allow", name)]
    told = ask("audit", "strict", *allow)
    assert (told.code, told.measured["faults"]) == (0, [])
    assert all(fault in told.first for fault in wanted)
    # All but one: what is allowed was found, and the one is enough.
    told = ask("report", "strict", *allow[2:])
    assert (told.code, told.measured["faults"]) == (7, [f"10 {FAULTS['unexplained']}"])
    assert "The promise does not hold." in told.first
    assert all(fault in told.first for fault in wanted - set(told.measured["faults"]))
    compared = ask("compare", "", "base", "strict")
    assert {f"{name}: {count} after 0" for name, count in STRICT.items()} <= set(
        compared.measured["faults"]
    )
    assert ask.counts("strict") == ask.counts_without_spark("strict")


def test_a_grace_longer_than_the_run_hides_nothing(ask: Asked) -> None:
    made = Recorded("grace", 9.0, manifest={"grace_ns": ns(10)})
    for number in range(90):
        made.publish(number / 10)
    ask.read(made)
    told = ask("audit", "grace")
    assert (told.code, told.measured["faults"]) == (7, [f"90 {FAULTS['pending']}"])
    assert "Whether the promise holds was not shown" in told.first


def test_a_run_without_faults_holds_and_a_question_by_day_changes_no_answer_about_it(
    ask: Asked,
) -> None:
    """Two of five messages of the first day are delivered on the fourth, after a weekend."""
    made = Recorded("week", 4 * DAY_S)
    for number in range(50):
        row = made.publish(HOUR + number, key=str(number))
        made.deliver(row, 3 * DAY_S if number % 5 < 2 else 0.006)
    ask.read(made)

    def whole() -> Told:
        return ask("backlog", "week")

    before = whole()
    assert (before.code, before.measured["faults"]) == (0, [])
    assert "Allowed" not in before.first
    for job, day, faults in (
        ("latency", "2026-11-18", []),
        ("audit", "2026-11-18", []),
        ("audit", "2026-11-21", ["nothing was published"]),
    ):
        told = ask(job, "week", "--date", day)
        assert (told.code, told.measured["faults"]) == (7 if faults else 0, faults)
        assert "Allowed" not in told.first
    assert whole().measured == before.measured


def test_clocks_that_differ_by_more_than_a_latency_bears_leave_no_figure(ask: Asked) -> None:
    made = Recorded("skewed", 20.0)
    made.heads["c1"] = HOST | {"host": "h2", "wall_minus_monotonic_ns": START_NS - ns(0.009)}
    for number in range(200):
        made.deliver(made.publish(number / 10), number % 100 / 10_000)
    ask.read(made)
    doubtful = steady("doubtful")
    doubtful.heads["c1"] = HOST | {"wall_minus_monotonic_ns": START_NS + ns(40)}
    ask.read(doubtful)
    told = {run: ask("latency", run) for run in ("skewed", "doubtful")}
    for each in told.values():
        assert each.code == 7
        assert "end to end: intended to received is not given" in "; ".join(each.measured["faults"])
    (row,) = [
        row
        for row in told["skewed"].measured["percentiles"]
        if (row["measure"], row["scope"]) == ("received_from_intended", "all")
    ]
    # Those below zero are ranked, not left out: the median of 0 to 10 ms lies 4 ms below zero.
    assert (row["total"], row["p50"], row["p99"] // 100_000) == (200, -1, 8)


def test_what_never_comes_waits_to_the_end_and_no_broker_is_forgiven(ask: Asked) -> None:
    made = Recorded("stuck", 60.0)
    for number in range(50):
        made.publish(number / 1000)
    for broker, count in (("mb2", 50), ("mb9", 1)):
        for number in range(count):
            made.send(0.2 + number / 1000, broker=broker)
    made.manifest["brokers"] = ["mb1", "mb2"]
    ask.read(made)
    told = ask("backlog", "stuck")
    assert told.code == 7
    assert "mb1, orders/billing: not empty at the end: 50 were never taken out" in told.said
    longest = max(row["age_ms"] for row in told.measured["drains"])
    assert longest == pytest.approx(59_995)
    assert max(row["at"] for row in told.measured["timeline"]) == 59
    balance = ask("imbalance", "stuck")
    assert "the busiest broker took 1.49 times the mean" in balance.first
    assert "1 confirmed by a broker that is not in the manifest: mb9" in balance.text
    ask.read(steady("unlisted", 10, brokers=[]))
    balance = ask("imbalance", "unlisted")
    assert (balance.code, balance.measured["faults"]) == (0, [])
    assert "the busiest broker took 1.00 times the mean" in balance.first
