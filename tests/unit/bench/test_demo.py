from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from bench import processes
from bench.demo import cli, live_run, page, script
from bench.demo.live_run import RATE_MAX_PER_S, RESERVE_S, LiveRun, planned_rate
from bench.demo.screen import CONFIRMED, DELIVERED, Screen, Step, View
from bench.errors import BenchError


def paced(looks_s: float = 4.0) -> list[Step]:
    return [step for step, _ in script.script(looks_s) if step.needs_s]


def done(step: Step, took_s: float) -> Step:
    return replace(step, state="done", took_s=took_s)


@pytest.mark.parametrize("looks_s", [1.0, 4.0])
def test_every_event_of_the_story_happens_in_its_order(looks_s: float) -> None:
    titles = " | ".join(step.title for step in paced(looks_s))
    events = ("messages flow", "mb4 is added", "mb4 takes", "reloads", "removed", "killed", "back")
    places = [titles.index(event) for event in events]
    assert places == sorted(places)
    assert titles.endswith("again")
    assert len({script.ADDED, script.REMOVED, script.KILLED}) == 3


def test_records_are_spread_over_the_time_that_the_steps_need() -> None:
    whole_s = sum(step.needs_s for step in paced())
    assert planned_rate(60_000, paced()) == 60_000 / whole_s


@pytest.mark.parametrize("slow", range(1, 7))
def test_the_input_outlasts_a_step_that_takes_much_longer_than_thought(slow: int) -> None:
    """Simulated: a step takes 10 times its time; there is input left for every later step."""
    plan, left = paced(), 2_000.0
    for number, step in enumerate(plan):
        sent = 0.0
        for second in range(max(1, int(step.needs_s * (10 if number == slow else 1)))):
            step.took_s = second
            rate = planned_rate(int(left), plan)
            left, sent = left - rate, sent + rate
        assert sent >= 2
        step.state = "done"
    assert left > 0


def test_a_slow_machine_gets_its_records_spread_over_the_time_it_needs() -> None:
    first, second, *later = paced()

    def rate(*steps: Step) -> float:
        return planned_rate(1000, [*steps, *later])

    in_time = rate(done(first, first.needs_s), second)
    assert rate(done(first, 2 * first.needs_s), second) == in_time / 2
    assert rate(done(first, first.needs_s / 2), second) == in_time
    assert rate(done(first, 99 * first.needs_s), second) == in_time / live_run.SLOW_MAX


def test_the_rest_goes_out_soon_and_never_faster_than_the_limit() -> None:
    assert planned_rate(5000, ()) == 5000 / live_run.TAIL_S
    assert planned_rate(1, ()) == live_run.TAIL_MIN_PER_S
    assert planned_rate(10**9, ()) == RATE_MAX_PER_S
    last = replace(paced()[-1], took_s=99)
    assert planned_rate(400, [last]) == 400 / RESERVE_S
    assert planned_rate(10**9, [last]) == RATE_MAX_PER_S


def counts(**counted: int) -> Counter[tuple[str, str]]:
    found = Counter[tuple[str, str]]()
    for key, count in counted.items():
        what, name = key.split("_")
        found[what, name] = count
    return found


VIEW = View(
    elapsed_s=12.3,
    total=1000,
    published=600,
    steps=[Step("cluster starts", 0, "done", 9.8), Step("mb4 joins", 9, "running", 2.5)],
    counts=counts(confirmed_mb1=300, confirmed_mb2=290, delivered_mb1=580, billing_mb1=580),
    rates={(CONFIRMED, "mb1"): 41.4, (DELIVERED, "mb1"): 80.0},
    states={"mb1": "serves", "mb4": "joins"},
    note="waiting for mb4",
)


def test_plain_lines_tell_each_step_once_and_counters_now_and_then() -> None:
    console = Console(file=io.StringIO(), width=100)
    screen = Screen(console)
    for elapsed_s, published in ((12.3, 600), (12.8, 610), (17.4, 620), (23.0, 620)):
        screen.show(replace(VIEW, elapsed_s=elapsed_s, published=published))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "  12.3 s ok cluster starts (9.8 s)"
    assert lines[1] == "  12.3 s > mb4 joins"
    assert lines[2] == "  12.3 s     waiting for mb4"
    told = [line.split(",")[0].strip() for line in lines if "published" in line]
    assert told == ["12.3 s   published 600 of 1", "17.4 s   published 620 of 1"]
    assert len(lines) == 5


def write_batch(folder: Path, number: int, **messages: int) -> None:
    """Write a batch of the live job: messages by broker."""
    batch = folder / page.LIVE / "tables" / "minutes" / f"batch={number}"
    batch.mkdir(parents=True, exist_ok=True)
    rows = [{"broker": name, "messages": count} for name, count in messages.items()]
    pq.write_table(pa.Table.from_pylist(rows), batch / "part-0.parquet")


def test_messages_of_the_live_job_are_those_of_its_batches_as_they_were_last_written(
    tmp_path: Path,
) -> None:
    at = cast(LiveRun, SimpleNamespace(folder=tmp_path))
    assert page.messages_read(at) == Counter()
    write_batch(tmp_path, 0, a=2, b=1)
    write_batch(tmp_path, 1, a=3)
    assert page.messages_read(at) == Counter(a=5, b=1)
    write_batch(tmp_path, 1, a=3, b=40)
    assert page.messages_read(at) == Counter(a=5, b=41)


class Followed:
    """Live run of which one broker was read in part. The live job reads on, or ends, while it is awaited."""

    def __init__(self, folder: Path, *, ends: bool) -> None:
        self.folder, self.ends, self.did = folder, ends, list[str]()
        self.live = SimpleNamespace(exit_code=None)
        self.children = SimpleNamespace(child={page.LIVE: self.live}.__getitem__)
        found = counts(**{f"{CONFIRMED}_{script.REMOVED}": 5})
        self.view = View(counts=found, addresses={script.REMOVED: "a"})
        write_batch(folder, 0, a=3, b=9)

    def run(self, argv: list[str]) -> None:
        self.did.append(" ".join(argv))

    def look(self) -> None: ...

    def note(self, line: str) -> None: ...

    def wait(self, condition: Callable[[], object], what: str, *, silent: Any) -> None:
        assert silent is self.live
        self.did.append(what)
        assert not condition()
        if self.ends:
            self.live.exit_code = 1
        else:
            write_batch(self.folder, 1, a=2)
        assert condition()


@pytest.mark.parametrize("ends", [False, True])
def test_a_broker_leaves_with_its_stream_when_the_live_job_has_read_it_or_has_ended(
    tmp_path: Path, ends: bool
) -> None:
    at = Followed(tmp_path, ends=ends)
    script._leave(cast(LiveRun, at))
    assert at.did == [
        "consumer_lists drain a",
        "consumer_lists push",
        f"the live job reads the stream of {script.REMOVED}",
    ]
    actions = [action for _, action in script.script(looks_s=1)]
    assert actions.index(script._remove) == actions.index(script._leave) + 1


def test_a_job_that_logs_nothing_is_waited_for_as_long_as_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "STALLED_S", 1e-9)
    monkeypatch.setattr(processes, "IN_ALL", 10**15)
    at = LiveRun(
        folder=tmp_path,
        run_id="run",
        network="127.0.0",
        screen=Screen(Console(file=io.StringIO())),
        total=1,
        profile=cli._profile(tmp_path / "records", 1),
        looks_s=0,
        env={},
    )
    job = cast(Any, SimpleNamespace(exit_code=None))
    polls = iter([False] * 3 + [True])
    at.wait(lambda: next(polls), "the job", silent=job)
    job.exit_code = 0
    with pytest.raises(BenchError, match="the job"):
        at.wait(lambda: False, "the job", silent=job)
