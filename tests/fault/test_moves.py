"""Promise: a partition moves to another broker in daylight: nothing is lost, and each key keeps its order."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from messagebus import Topic, declare
from ops.local.cluster import LocalCluster
from tests.fault.test_partitions import HEARTBEAT_S, Group, InFlight, Sharing, out_of_order
from tests.support.eventually import eventually
from tests.support.faults import bus_config
from tests.support.moves import begin, homes, settled

WITHIN_S = 120.0
PARTITIONS, ROUNDS = 12, 3


def test_partitions_move_under_load_and_nothing_is_lost_or_out_of_order(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    bus = bus_config(broken, heartbeat_s=HEARTBEAT_S)
    declare(bus, [Topic(topic, partitions=PARTITIONS), f"{topic}/ledger"], timeout_s=60)
    group = Group(broken, topic, tmp_path)
    with ExitStack() as stack:
        stack.callback(group.end)
        sharing, in_flight = Sharing(bus, topic), InFlight(bus, topic)
        stack.callback(sharing.end)
        stack.callback(in_flight.end)
        eventually(group.first_ends, within_s=WITHIN_S, what="the first run")
        names = broken.brokers
        for turn in range(ROUNDS):
            known = homes(broken, topic)
            to = {p: names[(names.index(home) + 1) % len(names)] for p, home in enumerate(known)}
            assert begin(broken, topic, to) == {}, turn
            eventually(
                lambda: settled(broken, topic), within_s=WITHIN_S, what="all moves are finished"
            )
            assert homes(broken, topic) == list(to.values())
        time.sleep(0.5)
        sharing.end()
        in_flight.end()
        confirmed = {**sharing.confirmed, **in_flight.confirmed}

        def missing() -> int:
            ends = group.first_ends()
            return sum(len(set(some) - set(ends.get(key, ()))) for key, some in confirmed.items())

        eventually(lambda: not missing(), within_s=WITHIN_S, what="all that was confirmed is run")
        assert out_of_order(group.first_ends()) == []
    assert sum(map(len, confirmed.values())) > 100
