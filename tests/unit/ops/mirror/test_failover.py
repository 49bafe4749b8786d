"""Promotion of a mirror, and the options that an operator has when a host is away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from messagebus.errors import ConfigError
from ops.errors import NoAnswer, OpsError
from ops.mirror import failover as storage
from ops.mirror import promotion as promote
from ops.mirror.failover import Arrival
from ops.mirror.options import (
    both_answer,
    has_agent,
    of_mirror,
    permitted,
    run,
)
from ops.mirror.records import clear_alone, record_alone
from ops.mirror.view import MirrorView
from ops.run.command import RunOptions
from ops.run.plan import Blocked, Command, Plan, Step
from tests.support.mirrors import FakeHosts, mirror_view, mirrored_inventory
from tests.support.mirrors import ran as ran_on

HOSTS = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}


@pytest.fixture
def mirrored(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(mirrored_inventory(HOSTS, address="10.0.0.9", service_network="24"))
    return path


@pytest.fixture
def mirrored_view(mirrored: Path) -> MirrorView:
    return MirrorView(mirrored, "mb1", FakeHosts({"db1": "", "db2": "07 B"}).connect)


def ran(plan: Plan) -> list[str]:
    return [
        f"{command.host or 'here'}: {' '.join(command.argv)}"
        for step in plan.steps
        for command in step.commands
    ]


def failover(mirrored_view: MirrorView, *, agent: bool, consume_only: bool = False) -> Plan:
    return storage.failover(
        mirrored_view,
        mirrored_view.hosts[1],
        Arrival(consume_only=consume_only, agent=agent),
        is_dead=True,
        power=False,
        given_up=False,
        force=False,
    )


def test_what_a_failover_runs(mirrored_view: MirrorView, mirrored: Path) -> None:
    note = f"here: {sys.executable} -m ops drbd alone mb1 db2 --inventory {mirrored}"
    assert ran(failover(mirrored_view, agent=False)) == [
        "db2: install -D -m 600 /dev/null /run/messagebus/dead/mb1.db1",
        note,
        "db2: drbdadm primary mb1",
        "db2: /usr/local/lib/messagebus/check-disk /dev/drbd0",
        "db2: mount /dev/drbd0 /var/lib/rabbitmq",
        "db2: /usr/local/lib/messagebus/move-address take 10.0.0.9/24",
        "db2: /usr/local/lib/messagebus/same-node /var/lib/rabbitmq",
        "db2: systemctl start rabbitmq-server",
        f"here: {sys.executable} -m ops inventory move mb1 db2 --inventory {mirrored}",
        note,
        "db2: rm -f /run/messagebus/dead/mb1.db1",
    ]


def test_a_failover_writes_its_records_itself_and_waits_only_for_the_one_before_the_promotion(
    mirrored_view: MirrorView,
) -> None:
    steps = failover(mirrored_view, agent=True).steps
    names = [step.name for step in steps]
    before = "write down that db2 goes on alone, if it does"
    serving = "send publishers to mb1"
    after = ["write down what db2 has alone", "forget the proof"]
    assert names.index(before) < names.index("promote db2") < names.index(serving)
    assert all(names.index(serving) < names.index(each) for each in after)
    own = {step.name: step.commands[0].call for step in steps if step.commands}
    for record in (before, after[0]):
        mirrored_view.alone_file.unlink(missing_ok=True)
        call = own[record]
        assert call is not None
        call()
        assert mirrored_view.alone is not None
        assert mirrored_view.alone.host == "db2"
    moved = own["write down that mb1 runs on db2"]
    assert moved is not None
    moved()
    assert mirrored_view.node.host == "db2"


def test_the_agent_holds_publishers_back_or_lets_them_in(
    mirrored_view: MirrorView, mirrored: Path
) -> None:
    full = ran(failover(mirrored_view, agent=True))
    started = full.index("db2: systemctl start messagebus-agent")
    assert full[started - 1].endswith("/var/lib/rabbitmq/.erlang.cookie /etc/messagebus/cookie")
    bound = full.index("db2: mount --bind /var/lib/rabbitmq/messagebus /var/lib/messagebus")
    assert full.index("db2: mount /dev/drbd0 /var/lib/rabbitmq") < bound < started
    assert full[-2].endswith(f"-m consumer_lists --inventory {mirrored} push")
    assert f"here: {sys.executable} -m lb --inventory {mirrored} ready mb1" in full
    held = ran(failover(mirrored_view, agent=True, consume_only=True))
    assert (
        f"here: {sys.executable} -m ops hold mb1 --below-serving-min --inventory {mirrored}" in held
    )
    assert not any(line.endswith("ready mb1") for line in held)


def test_nothing_is_mounted_before_it_is_promoted_nor_started_before_it_is_mounted(
    mirrored_view: MirrorView, mirrored: Path
) -> None:
    lines = ran(failover(mirrored_view, agent=True))
    words = ["dead", "primary", "check-disk", " mount ", "take", "same-node", "rabbitmq-server"]
    words.append("agent")
    places = [next(n for n, line in enumerate(lines) if word in line) for word in words]
    assert places == sorted(places)


def test_there_is_no_way_back_from_a_promotion_but_forward(
    mirrored_view: MirrorView, mirrored: Path
) -> None:
    final = [step.name for step in failover(mirrored_view, agent=False).steps if step.is_final]
    assert final[0] == "promote db2"


def test_a_failback_leaves_in_good_order_and_then_arrives(mirrored: Path) -> None:
    seen = MirrorView(mirrored, "mb1", FakeHosts({"db1": "06 B", "db2": "06 A"}).connect)
    plan = storage.failback(seen, seen.hosts[0], Arrival(consume_only=False, agent=False))
    assert ran(plan) == [
        "db2: systemctl stop rabbitmq-server",
        "db2: /usr/local/lib/messagebus/move-address drop 10.0.0.9/24",
        "db2: umount /var/lib/rabbitmq",
        "db2: drbdadm secondary mb1",
        "db1: drbdadm primary mb1",
        "db1: /usr/local/lib/messagebus/check-disk /dev/drbd0",
        "db1: mount /dev/drbd0 /var/lib/rabbitmq",
        "db1: /usr/local/lib/messagebus/move-address take 10.0.0.9/24",
        "db1: /usr/local/lib/messagebus/same-node /var/lib/rabbitmq",
        "db1: systemctl start rabbitmq-server",
        f"here: {sys.executable} -m ops inventory move mb1 db1 --inventory {mirrored}",
    ]


def test_a_failback_can_be_taken_back_until_it_is_written_down(mirrored: Path) -> None:
    seen = MirrorView(mirrored, "mb1", FakeHosts({"db1": "06 B", "db2": "06 A"}).connect)
    plan = storage.failback(seen, seen.hosts[0], Arrival(consume_only=False, agent=False))
    *before, last = plan.steps
    assert all(step.undo for step in before)
    assert last.is_final


def test_a_start_and_a_stop_are_halves_of_a_failback(mirrored: Path) -> None:
    seen = MirrorView(mirrored, "mb1", FakeHosts({"db1": "06 B", "db2": "06 A"}).connect)
    home, standby = seen.hosts
    whole = ran(storage.failback(seen, home, Arrival(consume_only=False, agent=True)))
    stop = ran(storage.stop(seen, standby, Arrival(consume_only=False, agent=True)))
    start = ran(storage.start(seen, home, Arrival(consume_only=False, agent=True)))
    assert stop + [each for each in start if " drbd alone " not in each] == whole


@pytest.fixture
def plain_file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(mirrored_inventory(HOSTS, address="10.0.0.9"))
    return path


def view_of(plain_file: Path, one: str, two: str, **answers: str | None) -> MirrorView:
    return MirrorView(plain_file, "mb1", FakeHosts({"db1": one, "db2": two}, answers).connect)


def test_a_host_of_another_mirror_is_refused(plain_file: Path) -> None:
    text = plain_file.read_text() + '\n[[hosts]]\nname = "db3"\nssh = "db3"\n'
    plain_file.write_text(text)
    with pytest.raises(
        ConfigError, match="db3 is not a host of the mirror mb1: its hosts are db1 and"
    ):
        of_mirror(view_of(plain_file, "", ""), "db3")


def test_what_needs_both_hosts_says_which_is_silent(plain_file: Path) -> None:
    assert set(both_answer(view_of(plain_file, "06 A", "06 B"), dry_run=True)) == {"db1", "db2"}
    with pytest.raises(NoAnswer, match="db2"):
        both_answer(view_of(plain_file, "06 A", ""), dry_run=True)


def test_a_silent_host_is_not_taken_for_dead(plain_file: Path) -> None:
    seen = view_of(plain_file, "", "07 B")
    with pytest.raises(OpsError, match=r"db2 is not promoted: nothing is known of db1; prove that"):
        permitted(seen, seen.hosts[1], dead="", give_up="")


def test_an_operators_word_is_a_proof(plain_file: Path) -> None:
    seen = view_of(plain_file, "", "07 B")
    how = permitted(seen, seen.hosts[1], dead="db1", give_up="")
    assert how == {"is_dead": True, "power": False, "given_up": False, "force": False}


def test_what_a_host_wrote_alone_is_known_when_it_has_written(plain_file: Path) -> None:
    seen = view_of(plain_file, "07 B", "")
    noted = record_alone(seen, seen.hosts[0])
    assert noted
    assert (noted.host, noted.generation) == ("db1", "")
    seen = view_of(plain_file, "26 A", "")
    again = record_alone(seen, seen.hosts[0])
    assert again
    assert again.since == noted.since
    generations = seen.status(seen.hosts[0]).generations
    assert generations
    assert again.generation == generations.current
    assert seen.alone == again


def test_a_host_that_has_its_partner_is_not_alone(plain_file: Path) -> None:
    seen = view_of(plain_file, "06 A", "06 B")
    assert record_alone(seen, seen.hosts[0]) is None
    assert seen.alone is None


@pytest.mark.parametrize("two", ["", "09 B"])
def test_only_both_hosts_together_end_that_one_went_on_alone(plain_file: Path, two: str) -> None:
    seen = view_of(plain_file, "26 A", two)
    noted = record_alone(seen, seen.hosts[0])
    clear_alone(seen, seen.sides())
    assert seen.alone == noted
    whole = view_of(plain_file, "06 A", "06 B")
    both_answer(whole, dry_run=True)
    assert whole.alone == noted, "a dry run writes nothing"
    both_answer(whole, dry_run=False)
    assert whole.alone is None


def test_a_mark_that_cannot_be_read_is_told_and_promotes_nobody(plain_file: Path) -> None:
    seen = view_of(plain_file, "07 B", "")
    seen.alone_file.parent.mkdir()
    seen.alone_file.write_text("{")
    with pytest.raises(OpsError, match="see which host of mb1 wrote last, then delete it"):
        permitted(seen, seen.hosts[0], dead="db2", give_up="")


def test_a_host_that_answers_is_not_dead_whatever_an_operator_says(plain_file: Path) -> None:
    seen = view_of(plain_file, "07 A", "07 B")
    with pytest.raises(OpsError, match="db1 is not dead: it answers, and says WFConnection"):
        permitted(seen, seen.hosts[1], dead="db1", give_up="")


def test_a_host_that_refuses_what_it_is_asked_is_neither_down_nor_dead(plain_file: Path) -> None:
    """A refused sudo ends with the code of a mirror that is not there."""
    seen = view_of(plain_file, "sudo", "20 A")
    with pytest.raises(OpsError, match="db2 is not promoted: nothing is known of db1"):
        permitted(seen, seen.hosts[1], dead="", give_up="")
    with pytest.raises(OpsError, match=r"db1 is not dead: it answers, and refuses .* a password"):
        permitted(seen, seen.hosts[1], dead="db1", give_up="")


def test_a_power_controller_is_a_proof_and_is_asked_first(plain_file: Path) -> None:
    plain_file.write_text(mirrored_inventory(HOSTS, address="10.0.0.9", power="/usr/bin/pdu"))
    seen = view_of(plain_file, "", "07 B")
    assert permitted(seen, seen.hosts[1], dead="", give_up="")["power"]
    assert not permitted(seen, seen.hosts[1], dead="db1", give_up="")["power"]


def test_a_host_that_has_not_noticed_yet_is_waited_for_by_the_playbook(plain_file: Path) -> None:
    seen = view_of(plain_file, "", "06 B")
    assert permitted(seen, seen.hosts[1], dead="db1", give_up="")["is_dead"]
    with pytest.raises(OpsError, match="db1 is primary"):
        permitted(seen, seen.hosts[1], dead="", give_up="")


def test_outdated_data_are_promoted_by_force_and_only_when_the_newer_are_given_up(
    plain_file: Path,
) -> None:
    seen = view_of(plain_file, "", "26 B")
    with pytest.raises(OpsError, match="to give up what only db1 has, name it"):
        permitted(seen, seen.hosts[1], dead="db1", give_up="")
    assert permitted(seen, seen.hosts[1], dead="db1", give_up="db1")["force"]


def test_a_name_that_is_not_of_the_other_host_is_a_slip(plain_file: Path) -> None:
    seen = view_of(plain_file, "", "07 B")
    with pytest.raises(ConfigError, match="--dead db2: the other host of mb1 is db1"):
        permitted(seen, seen.hosts[1], dead="db2", give_up="")


def test_whether_hosts_have_agents_is_seen_from_their_units(plain_file: Path) -> None:
    seen = view_of(plain_file, "06 A", "06 B", **{"systemctl cat messagebus-agent": ""})
    assert has_agent(seen, seen.hosts[0])
    seen = view_of(plain_file, "06 A", "06 B", **{"systemctl cat messagebus-agent": None})
    assert not has_agent(seen, seen.hosts[0])


def plan(*commands: str) -> Plan:
    steps = (Step(name=word, commands=(Command((word,)),)) for word in commands)
    return Plan(name="try it", steps=tuple(steps))


def go(plain_file: Path, *, dry_run: bool = False) -> RunOptions:
    return RunOptions(file=plain_file, dry_run=dry_run, yes=True, undo=False)


def test_a_dry_run_prints_and_leaves_no_trace(
    plain_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(plan("false"), go(plain_file, dry_run=True), view_of(plain_file, "06 A", "06 B"))
    assert "$ false" in capsys.readouterr().out
    assert not (plain_file.parent / "journal").exists()


def test_a_promotion_needs_a_proof_first_where_the_other_is_silent(file: Path) -> None:
    seen = mirror_view(file)
    host = seen.hosts[1]
    note = f"here: {sys.executable} -m ops drbd alone mb1 db2 --inventory {file}"
    by_power = promote.promote(seen, host, is_dead=False, power=True, given_up=False, force=False)
    assert ran_on(by_power) == [
        "here: /usr/bin/pdu off db1",
        "db2: install -D -m 600 /dev/null /run/messagebus/dead/mb1.db1",
        note,
        "db2: drbdadm primary mb1",
        note,
        "db2: rm -f /run/messagebus/dead/mb1.db1",
    ]
    by_word = promote.promote(seen, host, is_dead=True, power=False, given_up=False, force=False)
    assert ran_on(by_word) == ran_on(by_power)[1:]
    given_up = promote.promote(seen, host, is_dead=True, power=False, given_up=True, force=True)
    assert ran_on(given_up)[-3] == "db2: drbdadm primary --force mb1"
    alive = promote.promote(seen, host, is_dead=False, power=False, given_up=False, force=False)
    assert ran_on(alive) == [note, "db2: drbdadm primary mb1", note]


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
    assert ran_on(plan) == ["db1: drbdadm secondary mb1"]
    check = plan.steps[0].check
    assert check
    assert check().startswith("Connected  Primary")


def test_frozen_writes_are_let_go_only_when_the_handler_did_not_do_it(file: Path) -> None:
    seen = mirror_view(file, "24 A", "")
    plan = promote.thaw(seen, seen.hosts[0])
    note = f"here: {sys.executable} -m ops drbd alone mb1 db1 --inventory {file}"
    assert ran_on(plan) == [
        note,
        "db1: install -D -m 600 /dev/null /run/messagebus/dead/mb1.db2",
        "db1: drbdadm resume-io mb1",
        note,
        "db1: rm -f /run/messagebus/dead/mb1.db2",
    ]
    done = plan.steps[2].done
    assert done
    assert not done()
