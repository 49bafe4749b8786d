"""Two local clusters never take the same ports, not even when both look at the same moment."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ops.errors import LocalFault
from ops.local import preflight
from ops.local.layout import Layout

NETWORK = f"127.252.{os.getpid() % 250}"
LAYOUT = Layout(dir=Path("/c"), numbers=(1, 2), network=NETWORK)


def test_the_second_of_two_starters_takes_other_ports() -> None:
    first = preflight.claim_ports(LAYOUT)
    second = preflight.claim_ports(LAYOUT)
    try:
        assert (first.layout.offset, second.layout.offset) == (0, 1000)
        assert first.layout.block != second.layout.block
    finally:
        first.release()
        second.release()


def test_released_ports_are_free_again() -> None:
    for _ in range(2):
        claim = preflight.claim_ports(LAYOUT)
        assert claim.layout.offset == 0
        claim.release()


def test_a_cluster_prefers_the_ports_that_it_had() -> None:
    first = preflight.claim_ports(LAYOUT)
    second = preflight.claim_ports(first.layout)
    second.release()
    again = preflight.claim_ports(second.layout)
    again.release()
    first.release()
    assert again.layout == second.layout


def test_a_taken_port_moves_all_or_is_told() -> None:
    with socket.create_server((f"{NETWORK}.12", 8082)):
        claim = preflight.claim_ports(LAYOUT)
        claim.release()
        assert claim.layout.offset == 1000
        with pytest.raises(LocalFault, match=rf"in use: {NETWORK}\.12:8082"):
            preflight.claim_ports(LAYOUT, port_offset=0)


def test_a_listener_on_all_addresses_counts() -> None:
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        port = everywhere.getsockname()[1]
        assert preflight.taken([("127.0.0.77", port)]) == [f"127.0.0.77:{port}"]
