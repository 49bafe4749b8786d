"""Promise: messages confirmed after a subscription's start() returned reach that subscription.

This holds for whichever broker took them, and whatever brokers and agents did meanwhile.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from bench.faults import FAULTS
from messagebus import BusConfig, Consumer
from messagebus.destination import Subscription, Topic
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import (
    agent_answer,
    balancer_configured,
    delete_queue,
    forget,
    metric,
    queue_exists,
    register,
    restore,
)
from tests.support.load import Load, consuming, drain, publishing
from tests.support.trials.soak import ALL_FAULTS, TOPIC, Soak, draws

log = logging.getLogger(__name__)

BACK_WITHIN_S = 30.0
# Publishers renew their links every second: that many confirms mean that the broker is in full use.
IN_USE = 100
REPAIRED_WITHIN_S = 2.0
# Time from a broker's return to its agent's in the experiment of reference/topology.md.
AGENT_LATER_S = 5.0
# By then a broker without a gate has taken publishes for seconds.
CONTROL_MUST_LOSE = 1


@pytest.mark.guarantee("topic-reaches-every-subscription")
def test_a_subscription_created_while_a_broker_is_down_gets_all_that_is_confirmed_afterwards(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"{topic}/billing", f"{topic}/audit")
    second = broken.node("mb2").broker
    with publishing(bus, topic) as load:
        broken.stop("mb2")
        started_ns = _start_subscription(bus, topic, "crm")
        answer = register(broken, f"{topic}/crm")
        assert answer["complete"]
        assert answer["later"] == [second]
        broken.start("mb2")
        _wait_in_use(load, second, since_ns=started_ns)
    after = load.confirmed_ids(since_ns=started_ns)
    assert after - drain(bus, topic, "crm", expected=after).keys() == set()
    everything = load.confirmed_ids()
    for older in ("billing", "audit"):
        assert everything - drain(bus, topic, older, expected=everything).keys() == set()


@pytest.mark.guarantee("vanished-queue-is-made-again", "cancel-by-the-server")
def test_a_queue_that_vanishes_is_made_again_and_what_it_lost_is_told(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"{topic}/billing", f"{topic}/audit")
    queue = Subscription(Topic(topic), "audit").amqp_queue
    first = broken.node("mb1").broker
    told_before = metric(broken, "mb1", "lost_total")
    with (
        publishing(bus, topic) as load,
        consuming(bus, topic, "audit") as audit,
        consuming(bus, topic, "billing") as billing,
    ):
        _wait_in_use(load, first)
        delete_queue(broken, "mb1", queue)
        eventually(
            lambda: _repaired(broken, "mb1", queue), within_s=REPAIRED_WITHIN_S, what="made again"
        )
        repaired_ns = time.monotonic_ns()
        assert queue_exists(broken, "mb1", queue)
        _wait_in_use(load, first, since_ns=repaired_ns)
        load.stop()
        everything = load.confirmed_ids()
        assert billing.wait_for(everything) == set()
        missing = audit.wait_for(everything)
    (report,) = _reports(broken, "mb1", queue)
    assert report["wanted"] == f"{topic}/audit"
    assert metric(broken, "mb1", "lost_total") == told_before + 1
    lost = [sent for sent in load.confirmed() if sent.published.message_id in missing]
    assert {sent.published.broker for sent in lost} <= {first}
    late_s = [(sent.started_ns - repaired_ns) / 1e9 for sent in lost]
    log.info(
        "%d lost, the last %.3f s before the repair was seen", len(lost), -max(late_s, default=0)
    )
    assert all(each < 0 for each in late_s)


@pytest.mark.guarantee("topic-reaches-every-subscription")
@pytest.mark.parametrize("gate", ["asked", "control"])
def test_a_broker_back_before_its_agent_takes_no_publish_because_balancers_ask_for_the_gate(
    broken: LocalCluster, bus: BusConfig, topic: str, gate: str
) -> None:
    """The control is a balancer that only looks whether the port answers."""
    register(broken, f"{topic}/billing")
    config = broken.layout.front.config.read_text()
    if gate == "control":
        config = _without_gate_check(config)
    with balancer_configured(broken, config):
        after, load = _broker_back_before_its_agent(broken, bus, topic)
    missing = after - drain(bus, topic, "crm", expected=after).keys()
    log.info("gate %s: %d of %d lost", gate, len(missing), len(after))
    if gate == "asked":
        assert missing == set()
    else:
        assert len(missing) >= CONTROL_MUST_LOSE
        brokers = {
            s.published.broker for s in load.confirmed() if s.published.message_id in missing
        }
        assert brokers == {broken.node("mb2").broker}


def _broker_back_before_its_agent(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> tuple[set[str], Load]:
    """Return the ids confirmed after the subscription crm was complete."""
    second = broken.node("mb2").broker
    with publishing(bus, topic) as load:
        # The agent first: it would have the balancer drain the broker, which the next one takes back.
        broken.kill("mb2", agent=True)
        broken.kill("mb2")
        started_ns = _start_subscription(bus, topic, "crm")
        broken.start("mb2")
        back = time.monotonic()
        eventually(lambda: time.monotonic() - back > AGENT_LATER_S, within_s=2 * AGENT_LATER_S)
        broken.start("mb2", agent=True)
        _wait_in_use(load, second, since_ns=time.monotonic_ns())
    return load.confirmed_ids(since_ns=started_ns), load


def _start_subscription(bus: BusConfig, topic: str, name: str) -> int:
    """Return the moment after start() returned complete. The subscription gives its deliveries back."""
    consumer = Consumer(bus, topic, subscription=name)
    consumer.start(timeout_s=BACK_WITHIN_S)
    assert consumer.registered
    started_ns = time.monotonic_ns()
    consumer.stop(timeout_s=0)
    return started_ns


def _wait_in_use(load: Load, broker: str, *, since_ns: int = 0) -> None:
    eventually(
        lambda: load.confirmed_by(broker, since_ns=since_ns) >= IN_USE,
        within_s=BACK_WITHIN_S,
        what=f"{broker} takes publishes",
    )


def _reports(cluster: LocalCluster, name: str, queue: str) -> list[dict[str, object]]:
    lost = agent_answer(cluster, name, "/topology")["lost"]
    return [report for report in lost if report["name"] == queue]


def _repaired(cluster: LocalCluster, name: str, queue: str) -> bool:
    reports = _reports(cluster, name, queue)
    return bool(reports) and all(report["repaired_at_ms"] for report in reports)


def _without_gate_check(config: str) -> str:
    lines = config.splitlines(keepends=True)
    kept = [
        line
        for line in lines
        if not line.lstrip().startswith(("tcp-check send", "tcp-check expect"))
    ]
    return "".join(kept)


SEED = int(os.environ.get("TESTS_SEED", "5"))
MINUTES = float(os.environ.get("TESTS_MINUTES", "1"))
EVERY_S = 6.0


def test_a_minute_of_random_faults_loses_nothing(broken: LocalCluster, tmp_path: Path) -> None:
    """Every fault of brokers and links once or nearly, an audit at the end.

    `make soak` is the long form, also with the faults around brokers: TESTS_MINUTES, TESTS_SEED.
    """
    faults = FAULTS if MINUTES <= 1 else ALL_FAULTS
    said: list[str] = []
    try:
        _, result = Soak(broken, tmp_path / "run", say=said.append).run(
            lasts_s=60 * MINUTES, every_s=EVERY_S, faults=draws(SEED, broken.names, faults)
        )
    finally:
        restore(broken)
        forget(broken, TOPIC)
    assert result.holds, (result.faults, said)
    assert result.confirmed > 1000
    assert result.total("delivered") == result.total("expected") == 2 * result.confirmed
    assert sum(any(name in line for name in faults) for line in said) >= 3
