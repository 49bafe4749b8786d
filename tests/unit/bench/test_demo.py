from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.demo import stage as scenario
from bench.demo.screen import LiveScreen, PlainScreen, Rates, StepView, View, picture
from bench.demo.stage import RATE_MAX_PER_S, RESERVE_S, planned_rate, slowness, steps


def test_every_event_of_the_story_happens_small_or_not() -> None:
    for small in (False, True):
        names = [step.name for step in steps(small=small)]
        assert names.index("add") < names.index("used")
        assert names.index("kill") < names.index("back") < names.index("again")
        assert {"flow", "reload", "remove"} < set(names)
    assert len({scenario.ADDED, scenario.REMOVED, scenario.KILLED}) == 3


def test_three_consumers_of_one_subscription_and_one_of_another() -> None:
    assert sorted(scenario.CONSUMERS) == ["audit", "billing", "billing", "billing"]
    assert scenario.PUBLISHERS == 4


def test_records_are_spread_over_the_time_that_the_steps_need() -> None:
    plan = steps(small=False)
    whole_s = sum(step.needs_s for step in plan)
    assert planned_rate(left=60_000, ahead=plan, in_step_s=0) == 60_000 / whole_s


@pytest.mark.parametrize("slow", ["add", "remove", "back"])
def test_the_input_outlasts_a_step_that_takes_much_longer_than_thought(slow: str) -> None:
    """Simulated: a step takes 10 times its time; there is input left for every later step."""
    plan, left = list(steps(small=False)), 2_000.0
    sent: dict[str, float] = {}
    while plan:
        lasts_s = plan[0].needs_s * (10 if plan[0].name == slow else 1)
        for second in range(int(lasts_s)):
            rate = planned_rate(left=int(left), ahead=plan, in_step_s=second)
            assert rate > 0
            left -= rate
            sent[plan[0].name] = sent.get(plan[0].name, 0) + rate
        plan.pop(0)
    assert left > 0
    assert min(sent.values()) >= 5


def test_a_slow_machine_gets_its_records_spread_over_the_time_it_needs() -> None:
    plan = steps(small=False)
    first, second = plan[:2]
    assert slowness([], first, 0.0) == 1.0
    assert slowness([(first, 2 * first.needs_s)], second, 0.0) == 2.0
    assert slowness([(first, first.needs_s / 2)], second, 0.0) == 1.0
    assert slowness([], second, 3 * second.needs_s) == 3.0
    assert slowness([], second, 99 * second.needs_s) == scenario.SLOW_MAX
    fast = planned_rate(left=1000, ahead=plan, in_step_s=0)
    assert planned_rate(left=1000, ahead=plan, in_step_s=0, slow=2.0) == fast / 2


def test_the_rest_goes_out_soon_and_never_faster_than_the_limit() -> None:
    assert planned_rate(left=5000, ahead=(), in_step_s=0) == 5000 / scenario.TAIL_S
    assert planned_rate(left=1, ahead=(), in_step_s=0) == scenario.TAIL_MIN_PER_S
    assert planned_rate(left=10**9, ahead=(), in_step_s=0) == RATE_MAX_PER_S
    last = steps(small=False)[-1:]
    assert planned_rate(left=400, ahead=last, in_step_s=99) == 400 / RESERVE_S
    assert planned_rate(left=10**9, ahead=last, in_step_s=99) == RATE_MAX_PER_S


VIEW = View(
    elapsed_s=12.3,
    total=1000,
    published=600,
    steps=[StepView("cluster starts", "done", 9.8), StepView("mb4 joins", "running", 2.5)],
    confirmed={"mb1": 300, "mb2": 290},
    delivered={"mb1": 580},
    subscriptions={"billing": 590, "audit": 588},
    rates={"mb1": (41.4, 80.0)},
    states={"mb1": "serves", "mb4": "joins"},
    note="waiting for mb4",
)


def text_of(show: object) -> str:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    console.print(show)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_picture_has_steps_counters_brokers_and_the_note() -> None:
    text = text_of(picture(VIEW))
    for part in ("✓ cluster starts", "▶ mb4 joins", "590", "joins", "waiting for mb4", "1,000"):
        assert part in text


def test_plain_lines_tell_each_step_once_and_counters_now_and_then() -> None:
    console = Console(file=io.StringIO(), width=100)
    with PlainScreen(console) as screen:
        for elapsed_s, published in ((12.3, 600), (12.8, 610), (17.4, 620), (23.0, 620)):
            screen.show(replace(VIEW, elapsed_s=elapsed_s, published=published))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "  12.3 s ok cluster starts (9.8 s)"
    assert lines[1] == "  12.3 s > mb4 joins"
    assert lines[2] == "  12.3 s     waiting for mb4"
    told = [line.split(",")[0].strip() for line in lines if "published" in line]
    assert told == ["12.3 s   published 600 of 1", "17.4 s   published 620 of 1"]
    assert len(lines) == 5


def test_a_low_terminal_shows_the_steps_around_the_running_one() -> None:
    steps = [StepView(f"step {n}", "done") for n in range(8)]
    steps += [StepView("step 8", "running"), StepView("step 9"), StepView("step 10")]
    text = text_of(picture(View(total=10, steps=steps), 13))
    assert len(text.splitlines()) <= 13
    assert "step 5" not in text
    assert all(f"step {n}" in text for n in (7, 8, 9, 10))
    assert "step 0" in text_of(picture(View(total=10, steps=steps), 50))


def test_a_live_screen_draws_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with LiveScreen(console) as screen:
        screen.show(VIEW)
        screen.say("a line that stays")
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "mb4 joins" in drawn
    assert "a line that stays" in drawn


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = Rates()
    assert rates.add(0.0, {"mb1": 0}, {}) == {"mb1": (0.0, 0.0)}
    assert rates.add(1.0, {"mb1": 100}, {"mb1": 50}) == {"mb1": (100.0, 50.0)}
    for second in range(2, 10):
        found = rates.add(float(second), {"mb1": 100}, {"mb1": 50 + second, "mb4": 9})
    assert found == {"mb1": (0.0, 1.0), "mb4": (0.0, 0.0)}
