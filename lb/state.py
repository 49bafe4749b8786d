"""The state file that HAProxy reads at its start: brokers that are up, down, drained. Pure.

Without it HAProxy forgets drains and takes every server as up until its first check: a shut gate got
96 connections in 0.9 s. So a broker that the running process does not know, and every broker at a
start from nothing, is written as down: its first good check brings it up within milliseconds.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

from inventory.inventory import Address, Node
from lb.render import BROKERS, WEIGHT

# The format that HAProxy writes and reads as version 1, by `show servers state`.
HEAD = (
    "1\n"
    "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight"
    " srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state"
    " srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl"
    " srv_check_port srv_check_addr srv_agent_addr srv_agent_port\n"
)
COLUMNS = 25
NUMBER = re.compile("[0-9]{1,5}")
MAINT_FLAG, DRAIN_FLAG, INHERITED_DRAIN_FLAG = 0x01, 0x08, 0x10
DRAIN_FLAGS = DRAIN_FLAG | INHERITED_DRAIN_FLAG
# Flags set by an order, in contrast to those from the configuration or another server.
ORDERED_FLAGS = MAINT_FLAG | DRAIN_FLAG


class Row(NamedTuple):
    """One broker's line. address: as HAProxy resolved it. text: the whole line."""

    name: str
    address: Address
    admin_state: int
    text: str


def rows(text: str) -> dict[str, Row]:
    """Return the brokers' lines of a state file by name; other lines are left out."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < COLUMNS or words[1] != BROKERS:
            continue
        if NUMBER.fullmatch(words[6]) and NUMBER.fullmatch(words[18]):
            address = Address(words[4], int(words[18]))
            found[words[3]] = Row(words[3], address, int(words[6]), line)
    return found


def warm(text: str, brokers: Iterable[Node]) -> str:
    """Return a state file for a reload: known brokers as they are, new or moved ones down.

    text: the running process's answer to ``show servers state``.
    """
    known = rows(text)
    return HEAD + "".join(
        f"{row.text}\n"
        if (row := known.get(node.name)) and _same(row.address, node)
        else _down(node)
        for node in brokers
    )


def cold(text: str, brokers: Iterable[Node]) -> str:
    """Return a state file for a start from nothing: all down until checked, drains kept.

    text: the last saved state file, "" for none.
    """
    known = rows(text)
    return HEAD + "".join(
        _down(node, known[node.name].admin_state & ORDERED_FLAGS if node.name in known else 0)
        for node in brokers
    )


def _down(node: Node, admin_state: int = 0) -> str:
    host, port = node.address
    # Checks are configured and enabled (6), the last result is unknown (1), health 0.
    return (
        f"0 {BROKERS} 0 {node.name} {_literal(host) or '-'} 0 {admin_state} {WEIGHT} {WEIGHT} 0 1 1 0 6 0 0 0"
        f" - {port} - 0 0 - - 0\n"
    )


def _same(address: Address, node: Node) -> bool:
    """Return whether a server still has the same address; a host name counts as the same host."""
    literal = _literal(node.address.host)
    return address.port == node.address.port and literal in ("", _literal(address.host))


def _literal(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return ""
