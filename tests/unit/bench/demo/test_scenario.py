from bench.demo import scenario
from bench.demo.scenario import RATE_MAX_PER_S, RESERVE_S, planned_rate, slowness, steps


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


def test_the_input_outlasts_a_step_that_takes_much_longer_than_thought() -> None:
    """Simulated: the add step takes 10 times its time; there is input left for every later step."""
    plan, left = list(steps(small=False)), 60_000.0
    sent: dict[str, float] = {}
    while plan:
        lasts_s = plan[0].needs_s * (10 if plan[0].name == "add" else 1)
        for second in range(int(lasts_s)):
            rate = planned_rate(left=int(left), ahead=plan, in_step_s=second)
            assert rate > 0
            left -= rate
            sent[plan[0].name] = sent.get(plan[0].name, 0) + rate
        plan.pop(0)
    assert left > 0
    assert min(sent.values()) >= 1


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
