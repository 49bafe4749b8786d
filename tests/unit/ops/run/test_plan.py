from __future__ import annotations

from ops.run.plan import Command, Plan, Step


def test_a_plan_shows_exactly_what_it_runs() -> None:
    plan = Plan(
        name="add mb4",
        steps=(
            Step(
                name="start broker mb4",
                commands=(Command(("systemctl", "start", "a b"), "mb4.example"),),
                until="it answers",
                within_s=120,
            ),
            Step(name="say", commands=(Command(("echo", "it's")),)),
        ),
    )
    assert list(plan.lines()) == [
        "  1. start broker mb4",
        "     $ ssh mb4.example 'systemctl start '\"'\"'a b'\"'\"''",
        "     until it answers, 120 s at most",
        "  2. say",
        "     $ echo 'it'\"'\"'s'",
    ]
