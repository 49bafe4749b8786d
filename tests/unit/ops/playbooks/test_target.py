from __future__ import annotations

from ops.playbooks.target import Target


def test_what_a_journal_keeps_makes_the_same_target_again() -> None:
    target = Target(name="mb2", address="127.0.0.12:5672", agent_port=8081)
    assert Target(name="mb2", **target.facts) == target
    far = Target(name="mb2", address="h2:5672", agent_port=8081, ssh="op@h2", sudo=True)
    assert Target(name="mb2", **far.facts) == far
