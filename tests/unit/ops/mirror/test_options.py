"""Questions and refusals before a plan about a mirror is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from messagebus.errors import ConfigError
from ops.errors import NoAnswer, OpsError
from ops.mirror.options import (
    both_answer,
    clear_alone,
    has_agent,
    of_mirror,
    permitted,
    record_alone,
    run,
)
from ops.mirror.view import MirrorView
from ops.run.command import RunOptions
from ops.run.plan import Command, Plan, Step
from tests.support.mirrors import FakeHosts, mirrored_inventory

HOSTS = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(mirrored_inventory(HOSTS, address="10.0.0.9"))
    return path


def view(file: Path, one: str, two: str, **answers: str | None) -> MirrorView:
    return MirrorView(file, "mb1", FakeHosts({"db1": one, "db2": two}, answers).connect)


def test_a_host_of_another_mirror_is_refused(file: Path) -> None:
    text = file.read_text() + '\n[[hosts]]\nname = "db3"\nssh = "db3"\n'
    file.write_text(text)
    with pytest.raises(
        ConfigError, match="db3 is not a host of the mirror mb1: its hosts are db1 and"
    ):
        of_mirror(view(file, "", ""), "db3")


def test_what_needs_both_hosts_says_which_is_silent(file: Path) -> None:
    assert set(both_answer(view(file, "06 A", "06 B"))) == {"db1", "db2"}
    with pytest.raises(NoAnswer, match="db2"):
        both_answer(view(file, "06 A", ""))


def test_a_silent_host_is_not_taken_for_dead(file: Path) -> None:
    seen = view(file, "", "07 B")
    with pytest.raises(OpsError, match=r"db2 is not promoted: nothing is known of db1; prove that"):
        permitted(seen, seen.hosts[1], dead="", give_up="")


def test_an_operators_word_is_a_proof(file: Path) -> None:
    seen = view(file, "", "07 B")
    how = permitted(seen, seen.hosts[1], dead="db1", give_up="")
    assert how == {"is_dead": True, "power": False, "given_up": False, "force": False}


def test_what_a_host_wrote_alone_is_known_when_it_has_written(file: Path) -> None:
    seen = view(file, "07 B", "")
    noted = record_alone(seen, seen.hosts[0])
    assert noted
    assert (noted.host, noted.generation) == ("db1", "")
    seen = view(file, "26 A", "")
    again = record_alone(seen, seen.hosts[0])
    assert again
    assert again.since == noted.since
    generations = seen.status(seen.hosts[0]).generations
    assert generations
    assert again.generation == generations.current
    assert seen.alone == again


def test_a_host_that_has_its_partner_is_not_alone(file: Path) -> None:
    seen = view(file, "06 A", "06 B")
    assert record_alone(seen, seen.hosts[0]) is None
    assert seen.alone is None


@pytest.mark.parametrize("two", ["", "09 B"])
def test_only_both_hosts_together_end_that_one_went_on_alone(file: Path, two: str) -> None:
    seen = view(file, "26 A", two)
    noted = record_alone(seen, seen.hosts[0])
    clear_alone(seen, seen.sides())
    assert seen.alone == noted
    whole = view(file, "06 A", "06 B")
    both_answer(whole)
    assert whole.alone is None


def test_a_mark_that_cannot_be_read_is_told_and_promotes_nobody(file: Path) -> None:
    seen = view(file, "07 B", "")
    seen.alone_file.parent.mkdir()
    seen.alone_file.write_text("{")
    with pytest.raises(OpsError, match="see which host of mb1 wrote last, then delete it"):
        permitted(seen, seen.hosts[0], dead="db2", give_up="")


def test_a_host_that_answers_is_not_dead_whatever_an_operator_says(file: Path) -> None:
    seen = view(file, "07 A", "07 B")
    with pytest.raises(OpsError, match="db1 is not dead: it answers, and says WFConnection"):
        permitted(seen, seen.hosts[1], dead="db1", give_up="")


def test_a_host_that_refuses_what_it_is_asked_is_neither_down_nor_dead(file: Path) -> None:
    """A refused sudo ends with the code of a mirror that is not there."""
    seen = view(file, "sudo", "20 A")
    with pytest.raises(OpsError, match="db2 is not promoted: nothing is known of db1"):
        permitted(seen, seen.hosts[1], dead="", give_up="")
    with pytest.raises(OpsError, match=r"db1 is not dead: it answers, and refuses .* a password"):
        permitted(seen, seen.hosts[1], dead="db1", give_up="")


def test_a_power_controller_is_a_proof_and_is_asked_first(file: Path) -> None:
    file.write_text(mirrored_inventory(HOSTS, address="10.0.0.9", power="/usr/bin/pdu"))
    seen = view(file, "", "07 B")
    assert permitted(seen, seen.hosts[1], dead="", give_up="")["power"]
    assert not permitted(seen, seen.hosts[1], dead="db1", give_up="")["power"]


def test_a_host_that_has_not_noticed_yet_is_waited_for_by_the_playbook(file: Path) -> None:
    seen = view(file, "", "06 B")
    assert permitted(seen, seen.hosts[1], dead="db1", give_up="")["is_dead"]
    with pytest.raises(OpsError, match="db1 is primary"):
        permitted(seen, seen.hosts[1], dead="", give_up="")


def test_outdated_data_are_promoted_by_force_and_only_when_the_newer_are_given_up(
    file: Path,
) -> None:
    seen = view(file, "", "26 B")
    with pytest.raises(OpsError, match="to give up what only db1 has, name it"):
        permitted(seen, seen.hosts[1], dead="db1", give_up="")
    assert permitted(seen, seen.hosts[1], dead="db1", give_up="db1")["force"]


def test_a_name_that_is_not_of_the_other_host_is_a_slip(file: Path) -> None:
    seen = view(file, "", "07 B")
    with pytest.raises(ConfigError, match="--dead db2: the other host of mb1 is db1"):
        permitted(seen, seen.hosts[1], dead="db2", give_up="")


def test_whether_hosts_have_agents_is_seen_from_their_units(file: Path) -> None:
    seen = view(file, "06 A", "06 B", **{"systemctl cat messagebus-agent": ""})
    assert has_agent(seen, seen.hosts[0])
    seen = view(file, "06 A", "06 B", **{"systemctl cat messagebus-agent": None})
    assert not has_agent(seen, seen.hosts[0])


def plan(*commands: str) -> Plan:
    steps = (Step(name=word, commands=(Command((word,)),)) for word in commands)
    return Plan(name="try it", steps=tuple(steps))


def go(file: Path, *, dry_run: bool = False) -> RunOptions:
    return RunOptions(file=file, dry_run=dry_run, yes=True, undo=False)


def test_a_dry_run_prints_and_leaves_no_trace(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(plan("false"), go(file, dry_run=True), view(file, "06 A", "06 B"))
    assert "$ false" in capsys.readouterr().out
    assert not (file.parent / "journal").exists()
