"""Brokers are added, removed, restarted, upgraded and replaced under load: nothing is lost or doubled.

Also where a playbook is killed, or meets something dead: it stops at a safe point, or goes on without it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest

from messagebus import Broker, Outcome, PublisherConfig, declare
from messagebus._io.amqp.link import Credentials, Link, dial
from messagebus._io.loop import LoopThread
from ops.local import process
from ops.local.cluster import LocalCluster
from ops.run.command import JOURNALS
from ops.run.journal import Journal
from tests import tiers
from tests.support import killed_ops
from tests.support.cluster import MakeCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import bus_config, forget
from tests.support.load import consuming, publishing
from tests.support.moves import homes, settled
from tests.support.ordered_load import Group, keys_of, loaded, out_of_order
from tests.support.playbooks import SUBSCRIPTION, Audit, AuditedLoad, Reused, argv, lb, ops
from tests.support.trials.outer_faults import set_clock

RECEIVED_FIRST = 100
RECEIVED_WITHIN_S = 60.0
RELOADS = 3
# Of a subscription, over all brokers, and for how long a publisher waits for room in it.
QUOTA, SEND_WITHIN_S = 60, 600.0
STATE_WITHIN_S = 60.0
STEP_WITHIN_S = 120.0
STEPS_MAX = 40
# A day's runs are killed at one step in so many; the model of playbooks kills them everywhere, every time.
KILL_EVERY = 3
# The playbook sees that the broker and others serve, marks the broker, and brings the list.
STEPS_BEFORE_MOVES = STEPS_BEFORE_FREEZE = 3
DAY_S = 86_400
# Of keys tests with moves have more in each second; here they are moved by playbooks, which take minutes.
SLOWER = 4.0

NOTHING = Audit(lost=set(), doubled=set())
# Forty runs that are killed: each is a process of its own, and the program is loaded once for all.
FRESH = get_context("forkserver")
FRESH.set_forkserver_preload([killed_ops.__name__])


@pytest.fixture(scope="module")
def reused(make_cluster: MakeCluster) -> Iterator[Reused]:
    with closing(Reused(make_cluster)) as reused:
        yield reused


@pytest.fixture
def cluster(reused: Reused) -> LocalCluster:
    """A cluster of these tests' own, which change its brokers."""
    return reused.cluster()


@pytest.fixture
def load(cluster: LocalCluster, reused: Reused) -> Iterator[AuditedLoad]:
    """Publishers and consumers at work."""
    load = reused.load()
    receives(load, RECEIVED_FIRST)
    yield load
    load.audit()  # what a test that failed lost or doubled is not told of the next one


class Keyed(NamedTuple):
    """Load of a topic with partitions. ended: ends it, and waits for all messages but those of some keys."""

    topic: str
    group: Group
    ended: Callable[..., object]

    def holds(self, but: Collection[str] = ()) -> None:
        """Assert that nothing was lost, but of these keys, and that each key has its order."""
        self.ended(but)
        assert out_of_order(self.group.first_ends()) == []


@pytest.fixture
def keyed(cluster: LocalCluster, tmp_path: Path) -> Iterator[Keyed]:
    """Publishers and consumers of keys whose order is kept, at work."""
    topic = f"keyed-{tmp_path.name[-40:]}"
    with loaded(cluster, topic, tmp_path, partitions=6, slower=SLOWER) as (group, _search, ended):
        yield Keyed(topic, group, ended)
    forget(cluster, topic)  # what a run that was killed has left there would hold up further moves


def receives(load: AuditedLoad, count: int) -> None:
    """Wait until so many messages more were received."""
    wanted = len(load.received) + count
    eventually(lambda: len(load.received) > wanted, within_s=RECEIVED_WITHIN_S)


def serves(load: AuditedLoad, broker: str) -> None:
    """Wait until the broker confirmed publishes and gave deliveries, from now on."""
    confirmed, consumed = load.confirmed_by(broker), load.consumed_from[broker]
    eventually(
        lambda: load.confirmed_by(broker) > confirmed and load.consumed_from[broker] > consumed,
        within_s=STATE_WITHIN_S,
    )


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A thread for links that live beside the test."""
    thread = LoopThread("foreign clients")
    yield thread
    thread.stop()


async def stuck_on(cluster: LocalCluster, name: str, topic: str) -> tuple[Link, Link]:
    """Open links of clients that follow no list: one may publish, one died with deliveries in its hands."""
    login = Credentials(user="bus", password=cluster.password, client_id="foreign")
    broker = Broker.parse(cluster.node(name).broker)
    publishes, holds = [await dial(broker, login, timeout_ms=5_000) for _ in range(2)]
    await holds.call(
        "basic_consume",
        queue=f"mb.sub/{topic}/{SUBSCRIPTION}",
        on_message_callback=lambda *_: None,
    )
    return publishes, holds


@pytest.mark.guarantee("add-and-remove", "key-order-across-brokers", "stuck-clients-are-hung-up-on")
def test_adding_and_removing_under_load_loses_and_doubles_nothing_and_keeps_the_order_of_keys(
    cluster: LocalCluster, load: AuditedLoad, keyed: Keyed, thread: LoopThread
) -> None:
    """Clients that do not move keep no broker: they are hung up on, and named."""
    added = ops(cluster, "add", "mb4", "--yes")
    assert added.returncode == 0, added.stderr
    serves(load, cluster.node("mb4").broker)

    second = cluster.node("mb2").broker
    stuck = thread.run(stuck_on(cluster, "mb2", load.topic))
    removed = ops(cluster, "remove", "mb2", "--held-s", "3", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert load.confirmed_by(second)
    left = "wait for publishers to leave mb2: 1 connection that may publish: foreign at"
    assert left in removed.stderr
    told = proofs(removed.stderr)
    assert "closed 1 connection: foreign at 127." in told
    assert re.search(r"\(user bus, holds \d+ deliver", told)
    assert not any(link.is_open for link in stuck)
    assert re.search(r"(\d+) of \1 clients work by generation \d+", told)
    assert "0 messages are left in" in told
    assert load.audit() == NOTHING
    assert cluster.names == ["mb1", "mb3", "mb4"]
    assert second not in cluster.consumer_list().names
    assert second not in homes(cluster, keyed.topic)
    keyed.holds()
    assert process.marked(f"{cluster.dir}#mb2#") == []


@pytest.mark.guarantee("quotas-follow-the-brokers")
def test_a_quota_that_is_reached_is_shared_anew_while_publishers_wait_and_loses_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    """Publishers wait at a full subscription while a broker is added, and nobody consumes yet."""
    bus, topic, before = bus_config(cluster), "full", cluster.names
    spare = next(name for name in ("mb2", "mb4") if name not in before)
    leaving = next(name for name in ("mb2", "mb4") if name in before)
    source = f"{topic}/{SUBSCRIPTION}"
    declare(bus, [source])
    quota = ops(cluster, "quota", "set", source, "--messages", str(QUOTA))
    assert quota.returncode == 0, quota.stderr
    waits = PublisherConfig(on_full="wait", deadline_s=SEND_WITHIN_S)
    with publishing(bus, topic, publishers=2, config=waits) as waiting:
        eventually(lambda: len(waiting.confirmed()) >= QUOTA // 3, within_s=STATE_WITHIN_S)
        added = ops(cluster, "add", spare, "--yes")
        assert added.returncode == 0, added.stderr
        assert shares(cluster, source) == dict.fromkeys(cluster.names, -(-QUOTA // 4))
        with consuming(bus, topic, SUBSCRIPTION) as consumer:
            removed = ops(cluster, "remove", leaving, "--held-s", "3", "--yes")
            assert removed.returncode == 0, removed.stderr
            assert shares(cluster, source) == dict.fromkeys(cluster.names, -(-QUOTA // 3))
            waiting.stop()
            missing = consumer.wait_for(waiting.confirmed_ids())
    assert {*cluster.names} == {*before, spare} - {leaving}
    assert (missing, waiting.left_open) == (set(), 0)
    assert set(waiting.outcomes()) == {Outcome.CONFIRMED}
    assert load.audit() == NOTHING
    assert ops(cluster, "quota", "clear", source).returncode == 0
    forget(cluster, topic)


def shares(cluster: LocalCluster, source: str) -> dict[str, int]:
    """Return the share of a quota that each broker has."""
    found = {}
    for name in cluster.names:
        with cluster.management(name) as management:
            policies = management.get("/api/policies/%2F").raise_for_status().json()
        (found[name],) = (
            int(each["definition"]["max-length"])
            for each in policies
            if f" {source} " in each["name"]
        )
    return found


def proofs(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if line.strip().startswith("proved"))


def test_reloads_of_the_balancer_under_load_lose_and_double_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    """Publishers renew their connections meanwhile, so that some are made in each of its moments."""
    for _ in range(RELOADS):
        receives(load, RECEIVED_FIRST)
        reloaded = lb(cluster, "apply", "--reload")
        assert reloaded.returncode == 0, reloaded.stderr
        assert "reloaded: process" in reloaded.stdout
    assert load.audit() == NOTHING


@pytest.mark.guarantee("restart-upgrade-replace")
def test_a_rolling_restart_under_load_loses_and_doubles_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    before = {name: process_of(cluster, name) for name in cluster.names}
    restarted = ops(cluster, "restart", "--rolling", "--yes")
    assert restarted.returncode == 0, restarted.stderr
    serves(load, cluster.node(cluster.names[-1]).broker)
    assert load.audit() == NOTHING
    after = {name: process_of(cluster, name) for name in cluster.names}
    assert all(before[name] != after[name] for name in before)
    assert not any(entry.draining for entry in cluster.consumer_list())


def version_of(cluster: LocalCluster, name: str) -> str:
    with cluster.management(name) as management:
        return str(management.get("/api/overview").json()["rabbitmq_version"])


def process_of(cluster: LocalCluster, name: str) -> process.Process:
    found = cluster.process_of(name)
    assert found is not None
    return found


# The first run of it makes a root folder of the other release.
@pytest.mark.timeout(1_800)
@pytest.mark.guarantee("restart-upgrade-replace", "key-order-across-brokers")
def test_an_upgrade_from_3_10_to_4_0_under_load_loses_and_doubles_nothing_and_keeps_the_order_of_keys(
    cluster: LocalCluster, load: AuditedLoad, keyed: Keyed
) -> None:
    """Brokers of the new release and of the old one are one bus, here and in the tests that follow."""
    name, other = cluster.names[:2]
    cookie = cluster.node(name).data_dir / "before"
    cookie.write_text("of the old installation")
    upgraded = ops(cluster, "upgrade", name, "--to", "4.0", "--yes")
    assert upgraded.returncode == 0, upgraded.stderr
    assert not cookie.exists()
    assert version_of(cluster, name).startswith("4.0.")
    assert version_of(cluster, other).startswith("3.10.")
    assert cluster.node(name).broker not in homes(cluster, keyed.topic)
    serves(load, cluster.node(name).broker)
    keyed.holds()
    assert load.audit() == NOTHING


# The first run of it makes a root folder of the other release.
@pytest.mark.timeout(1_800)
@pytest.mark.guarantee("add-and-remove")
def test_a_broker_of_4_0_is_added_beside_those_of_3_10_and_removed_and_nothing_is_lost_or_doubled(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    before = cluster.names
    spare = next(name for name in ("mb2", "mb4") if name not in before)
    cluster.provision(spare, "4.0")
    added = ops(cluster, "add", spare, "--yes")
    assert added.returncode == 0, added.stderr
    assert version_of(cluster, spare).startswith("4.0.")
    assert any(version_of(cluster, name).startswith("3.10.") for name in before)
    address = cluster.node(spare).broker
    serves(load, address)
    assert ops(cluster, "check").returncode == 0
    removed = ops(cluster, "remove", spare, "--yes")
    assert removed.returncode == 0, removed.stderr
    assert load.audit() == NOTHING
    assert cluster.names == before
    assert load.consumed_from[address] >= load.confirmed_by(address)


@pytest.mark.guarantee("key-order-across-brokers")
def test_the_partitions_of_a_restarted_broker_move_first_with_its_agent_and_the_playbook_killed(
    cluster: LocalCluster, keyed: Keyed
) -> None:
    name = cluster.names[1]
    log = cluster.layout.log_file(f"{name}-agent")
    begins = f"move begins topic={keyed.topic} "
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(run_killed, cluster, STEPS_BEFORE_MOVES, "restart", name)
        eventually(lambda: begins in log.read_text() or run.done(), within_s=STEP_WITHIN_S)
        assert not run.done(), "no move was begun"
        cluster.kill(name, agent=True)
        cluster.start(name, agent=True)
        assert run.result() == -signal.SIGKILL
    assert cluster.node(name).broker not in homes(cluster, keyed.topic)
    assert settled(cluster, keyed.topic)
    restarted = ops(cluster, "restart", name, "--yes")
    assert restarted.returncode == 0, restarted.stderr
    keyed.holds()


def kill_and_resume(cluster: LocalCluster, *words: str) -> int:
    """Kill it by SIGKILL at many steps, when their commands have run and its journal does not know yet.

    They are every third step, from the first, second or third of today on. Each run after the first repeats
    the step at which the one before was killed. Returns how many runs were killed.
    """
    first = tiers.today() % KILL_EVERY
    for kills, after in enumerate(range(first, STEPS_MAX, KILL_EVERY)):
        if (ended := run_killed(cluster, after, *words)) == 0:
            assert not Journal(cluster.inventory.parent / JOURNALS, " ".join(words)).is_resumed
            return kills
        assert ended == -signal.SIGKILL
        assert len(Journal(cluster.inventory.parent / JOURNALS, " ".join(words)).done) == after
    raise AssertionError(f"more than {STEPS_MAX} steps")


def run_killed(cluster: LocalCluster, after: int, *words: str) -> int | None:
    """Run until this many steps are kept and the next is due. Returns its exit code: minus the signal."""
    command = argv(cluster, *words, "--yes")[3:]
    run = FRESH.Process(target=killed_ops.run, args=(after, command))
    run.start()
    run.join(STEP_WITHIN_S * FACTOR)
    if run.exitcode is None:
        run.kill()
    return run.exitcode


@pytest.mark.guarantee("playbook-killed-anywhere")
@pytest.mark.timeout(1800)
def test_killed_at_many_steps_and_taken_up_again_adding_and_removing_lose_and_double_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    before = cluster.names
    spare = next(name for name in ("mb2", "mb4") if name not in before)
    assert kill_and_resume(cluster, "add", spare) >= 4
    address = cluster.node(spare).broker
    consumed = load.consumed_from[address]
    eventually(lambda: load.consumed_from[address] > consumed, within_s=STATE_WITHIN_S)
    assert kill_and_resume(cluster, "remove", spare) >= 5
    assert load.audit() == NOTHING
    assert cluster.names == before
    assert address not in cluster.consumer_list().names
    cluster.wait_ready()


@pytest.mark.guarantee("playbook-killed-anywhere")
def test_where_a_broker_is_frozen_a_playbook_stops_says_so_and_is_taken_up_again(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    """The model of playbooks has agents and balancers that are away, too."""
    # It has seen that the broker answers, and then it freezes.
    assert run_killed(cluster, STEPS_BEFORE_FREEZE, "restart", "mb3") == -signal.SIGKILL
    cluster.freeze("mb3")
    stopped = ops(cluster, "restart", "mb3", "--yes")
    assert stopped.returncode == 1, stopped.stderr
    assert "ops: step 'hang up on the publishers that are left on mb3': " in stopped.stderr
    assert "management of mb3 does not answer" in stopped.stderr
    cluster.thaw("mb3")
    resumed = ops(cluster, "restart", "mb3", "--yes")
    assert resumed.returncode == 0, resumed.stderr
    assert "taking up the run that did 6 of" in resumed.stderr
    assert load.audit().lost == set()
    cluster.wait_ready()


@pytest.mark.guarantee("restart-upgrade-replace", "key-order-across-brokers")
def test_a_dead_broker_is_replaced_under_load_and_only_what_lay_on_its_disk_can_be_missing(
    cluster: LocalCluster, load: AuditedLoad, keyed: Keyed
) -> None:
    name = cluster.names[1]
    address = cluster.node(name).broker
    count = load.confirmed_by(address)
    eventually(
        lambda: load.confirmed_by(address) > count + RECEIVED_FIRST, within_s=RECEIVED_WITHIN_S
    )
    early = ops(cluster, "replace", name, "--lose-messages", "--yes")
    assert early.returncode == 1
    assert f"the broker of {name} answers" in early.stderr
    assert not Journal(
        cluster.inventory.parent / JOURNALS, f"replace {name}"
    ).is_resumed  # it only looked
    cluster.kill(name)
    cluster.kill(name, agent=True)
    careless = ops(cluster, "replace", name, "--yes")
    assert careless.returncode == 1
    assert "the messages on its disk are lost permanently" in careless.stderr
    of_the_dead = {id for id, broker in dict(load.confirmed).items() if broker == address}
    replaced = ops(cluster, "replace", name, "--lose-messages", "--yes")
    assert replaced.returncode == 0, replaced.stderr
    serves(load, address)
    assert load.audit(but=of_the_dead).lost <= of_the_dead
    own = keys_of(address, homes(cluster, keyed.topic))
    before = keyed.group.first_ends()
    eventually(  # its partitions go on there
        lambda: any(keyed.group.first_ends().get(k, []) != before.get(k, []) for k in own),
        within_s=STATE_WITHIN_S,
    )
    keyed.holds(but=own)
    cluster.wait_ready()


@pytest.fixture
def four(make_cluster: MakeCluster, reused: Reused) -> LocalCluster:
    """A cluster of four brokers and two balancers.

    The clocks of two agents are a day off, one ahead, one behind.
    """
    reused.close()
    made = make_cluster(4, up=False, balancers=2)
    for name, off_s in (("mb2", -DAY_S), ("mb3", DAY_S)):
        set_clock(made.dir / "nodes" / name / "python", off_s)
    made.up()
    return made


def carry_out(cluster: LocalCluster, *words: str, broker: str) -> None:
    done = ops(cluster, *words, "--yes")
    assert done.returncode == 0, done.stderr
    told = f"note: dead, and left out: broker {broker}, agent of mb2, balancer haproxy2"
    assert told in done.stderr
    assert f"{broker} was dead meanwhile; when it is back: `python -m consumer_lists push`" in (
        done.stderr
    )
    assert "haproxy2 was dead meanwhile; when it is back: `python -m lb apply`" in done.stderr


# Playbooks and boots, which take ten times as long on a machine that is busy with other tests.
@pytest.mark.timeout(1800)
@pytest.mark.guarantee("playbooks-beside-the-dead")
def test_playbooks_go_on_while_a_broker_an_agent_and_a_balancer_are_dead_and_loses_nothing(
    four: LocalCluster,
) -> None:
    """The longest, and the last resort; the model of playbooks has all of them beside what is dead."""
    load = AuditedLoad(bus_config(four), "beside")
    # Before anything is published: what lies on its disk is lost when it is replaced.
    four.kill("mb1")
    with load.running():
        receives(load, RECEIVED_FIRST)
        four.kill("mb2", agent=True)
        four.kill("haproxy2")
        carry_out(four, "upgrade", "mb4", broker="mb1")
        four.kill("mb1", agent=True)
        four.kill("mb3")
        carry_out(four, "replace", "mb1", "--lose-messages", broker="mb3")
        for part in ("mb3", "mb2-agent", "haproxy2"):
            four.start(part)
        assert lb(four, "apply").returncode == 0
        four.wait_ready()
    assert load.lost == set()
    assert four.names == ["mb1", "mb2", "mb3", "mb4"]
