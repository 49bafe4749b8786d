"""A host becomes primary, or lets go: the order of steps, and their exact commands and hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ops.mirror import promotion as promote
from ops.run.plan import Blocked
from tests.support.mirrors import mirror_view, ran


def test_a_promotion_needs_a_proof_first_where_the_other_is_silent(file: Path) -> None:
    seen = mirror_view(file)
    host = seen.hosts[1]
    note = f"here: {sys.executable} -m ops drbd alone mb1 db2 --inventory {file}"
    by_power = promote.promote(seen, host, is_dead=False, power=True, given_up=False, force=False)
    assert ran(by_power) == [
        "here: /usr/bin/pdu off db1",
        "db2: install -D -m 600 /dev/null /run/messagebus/dead/mb1.db1",
        note,
        "db2: drbdadm primary mb1",
        note,
        "db2: rm -f /run/messagebus/dead/mb1.db1",
    ]
    by_word = promote.promote(seen, host, is_dead=True, power=False, given_up=False, force=False)
    assert ran(by_word) == ran(by_power)[1:]
    given_up = promote.promote(seen, host, is_dead=True, power=False, given_up=True, force=True)
    assert ran(given_up)[-3] == "db2: drbdadm primary --force mb1"
    alive = promote.promote(seen, host, is_dead=False, power=False, given_up=False, force=False)
    assert ran(alive) == [note, "db2: drbdadm primary mb1", note]


def test_what_takes_a_broker_from_its_host_can_be_taken_back(file: Path) -> None:
    seen = mirror_view(file)
    steps = promote.leaving(seen, seen.hosts[0], agent=True)
    assert all(step.undo and not step.is_final for step in steps)


def test_it_is_looked_again_before_a_promotion_whether_anything_is_lost_by_it(file: Path) -> None:
    def look(one: str, two: str, *, is_dead: bool = True, given_up: bool = False) -> str:
        seen = mirror_view(file, one, two)
        host = seen.hosts[1]
        steps = promote.promotion(
            seen, host, is_dead=is_dead, power=False, given_up=given_up, force=False
        )
        check = next(step.check for step in steps if step.name.startswith("see that"))
        assert check
        return check()

    assert look("", "07 B") == ""
    assert "still connected to db1" in look("", "06 B")
    assert "db2" in look("", "")
    with pytest.raises(Blocked, match="nothing is known of db1"):
        look("", "07 B", is_dead=False)
    with pytest.raises(Blocked, match="name it"):
        look("", "26 B")
    assert look("", "26 B", given_up=True) == ""
    assert look("06 B", "06 A", is_dead=False) == ""


def test_a_host_is_demoted_and_seen_to_be(file: Path) -> None:
    seen = mirror_view(file)
    plan = promote.demote(seen, seen.hosts[0])
    assert ran(plan) == ["db1: drbdadm secondary mb1"]
    check = plan.steps[0].check
    assert check
    assert check().startswith("Connected  Primary")


def test_frozen_writes_are_let_go_only_when_the_handler_did_not_do_it(file: Path) -> None:
    seen = mirror_view(file, "24 A", "")
    plan = promote.thaw(seen, seen.hosts[0])
    note = f"here: {sys.executable} -m ops drbd alone mb1 db1 --inventory {file}"
    assert ran(plan) == [
        note,
        "db1: install -D -m 600 /dev/null /run/messagebus/dead/mb1.db2",
        "db1: drbdadm resume-io mb1",
        note,
        "db1: rm -f /run/messagebus/dead/mb1.db2",
    ]
    done = plan.steps[2].done
    assert done
    assert not done()
