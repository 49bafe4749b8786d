"""Promise: what a gateway answered with 201 comes, whatever becomes of brokers and gateways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.figures.gateway import GatewayProcess
from messagebus import BusConfig
from ops.local.cluster import LocalCluster
from tests.support.gateway_programs import (
    MESSAGES_A_ROUND,
    ROUNDS,
    SENDERS,
    TROUBLES,
    run_kills,
)


@pytest.fixture
def gateways(
    tmp_path: Path, broken: LocalCluster, bus: BusConfig
) -> Iterator[list[GatewayProcess]]:
    with ExitStack() as stack:
        made = []
        for number in range(2):
            made.append(GatewayProcess(tmp_path, f"gw{number}", bus))
            stack.callback(made[-1].end)
        yield made


def test_nothing_that_was_answered_with_201_is_lost_when_brokers_and_gateways_fail(
    broken: LocalCluster, bus: BusConfig, topic: str, gateways: list[GatewayProcess]
) -> None:
    """Four kills, of a broker and a gateway at once too; a frozen broker; one in alarm."""
    rounds = (*ROUNDS, *TROUBLES)
    programs = run_kills(broken, gateways, bus, topic, rounds)
    assert programs.lost == set()
    assert len(programs.confirmed) == len(rounds) * SENDERS * MESSAGES_A_ROUND
    doubled = len(programs.received) - len(set(programs.received))
    print(f"unknown {programs.unknown}, doubled {doubled}, acked {programs.acked}")
