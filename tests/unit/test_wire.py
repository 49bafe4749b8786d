"""docs/WIRE.md: its numbers are those of the code, and its vectors are read as it says."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from messagebus import BusConfig, ConsumerConfig, PublisherConfig
from messagebus._io.agents import consumer_list as following
from messagebus._io.agents import registration
from messagebus._io.amqp.batch import ENTRIES_MAX
from messagebus._io.amqp.header_table import DEPTH_MAX, read_table
from messagebus._io.amqp.properties import IN_BATCH
from messagebus._io.consume.driver import APPLIED_HOLD_S
from messagebus._io.publish.links import RETIRE_MS
from messagebus.broker import LIST_BYTES_MAX, WIRE_VERSION, BrokerList
from messagebus.core.membership import Membership
from messagebus.core.route import REFUSED_FIRST_MS, REFUSED_MAX_MS
from messagebus.destination import DELAY_STEPS_MS, NAME_BYTES_MAX
from messagebus.errors import ListInvalid
from messagebus.message import HEADER_DEPTH_MAX
from messagebus.services.agent.consumer_list import EXPIRY_MS, TEXT_MAX
from messagebus.topology import OPTION_KINDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "WIRE.md").read_text()
LIST_ROWS = re.findall(r'^\| `(".*")` \| (.*) \|$', PAGE, re.MULTILINE)
TYPE_ROWS = re.findall(r"^\| `(\w)` \| .* \| `([0-9a-f]+)` \| (.*) \|$", PAGE, re.MULTILINE)
FLAG_ROWS = re.findall(r"^\| (\d+) \| `([0-9a-f]{4})` \| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
READS: dict[str, Any] = {
    "2026-01-01T00:00:00Z": datetime(2026, 1, 1, tzinfo=UTC),
    "1.25": Decimal("1.25"),
    "bytes ff 00": b"\xff\x00",
}


def test_the_page_has_the_one_version_that_agents_send() -> None:
    assert WIRE_VERSION == "1.0", "nothing else was released"
    assert PAGE.count(f"Version {WIRE_VERSION}.") == 1
    assert set(re.findall(r"MB-Wire: ([\d.]+)", PAGE)) == {WIRE_VERSION}


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    publisher, consumer, bus = PublisherConfig(), ConsumerConfig(), BusConfig()
    members = Membership()
    sentences = [
        f"replace the connection after {publisher.connection_lifetime_s} s, up to 20 %",
        f"wait for its confirms (at most {RETIRE_MS // 1000} s)",
        f"a confirm is older than {publisher.confirm_slow_s} s",
        f"takes longer than {bus.dial_timeout_s} s (doubled with each failure, "
        f"at most {bus.dial_timeout_max_s:g} s)",
        f"wait {members._first_ms} ms, doubled with each failure up to {members._max_ms // 1000} s",
        f"the same from {REFUSED_FIRST_MS // 1000} s up to {REFUSED_MAX_MS // 1000} s",
        f"after a link that lasted {members._max_ms // 1000} s",
        f"the held deliveries (at most {members._drain_ms // 1000} s)",
        f"| prefetch | {consumer.prefetch} a link",
        f"| consumer timeout | {consumer.consumer_timeout_s} s",
        f"| heartbeat | {bus.heartbeat_s} s",
        f"at most {LIST_BYTES_MAX} bytes",
        f"or {APPLIED_HOLD_S:g} s has passed",
        f"at most {TEXT_MAX} printing",
        f"has not asked for {EXPIRY_MS // 1000} s",
        f"one to {ENTRIES_MAX:,} entries",
        f"Nest no deeper than {HEADER_DEPTH_MAX}; readers take {DEPTH_MAX}",
        f"1 to {NAME_BYTES_MAX} bytes",
        f"after {registration.RETRY_FIRST_MS} ms, doubled up to {registration.RETRY_MAX_MS // 1000} s",
        " ".join(map(str, DELAY_STEPS_MS[-4:])),
    ]
    flat = " ".join(PAGE.split())
    assert [each for each in sentences if each not in flat] == []
    assert following.NOT_MODIFIED == 304
    assert [name for name in OPTION_KINDS if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize(("quoted", "told"), LIST_ROWS)
def test_a_list_of_the_page_is_read_as_it_says(quoted: str, told: str) -> None:
    text = json.loads(quoted)
    if told == "refused":
        with pytest.raises(ListInvalid):
            BrokerList.parse(text)
        return
    read = BrokerList.parse(text)
    brokers = " ".join(f"{each.broker}{'!' if each.draining else ''}" for each in read)
    generation = f", generation {read.generation}" if read.generation else ""
    assert told == f"`{brokers}`{generation}"


@pytest.mark.parametrize(("letter", "raw", "told"), TYPE_ROWS)
def test_a_header_value_of_the_page_is_read_as_it_says(letter: str, raw: str, told: str) -> None:
    table, end = read_table(bytes.fromhex(raw), 0)
    wanted = READS[told] if told in READS else json.loads(told)
    assert (table, end) == ({"k": wanted}, len(raw) // 2)
    assert raw[12:14] == letter.encode().hex()


def test_the_page_has_vectors_for_lists_for_every_type_and_for_every_flag() -> None:
    assert len(LIST_ROWS) >= 20
    assert len({letter for letter, _, _ in TYPE_ROWS}) == 19
    assert [int(bit) for bit, *_ in FLAG_ROWS] == list(range(15, 1, -1))
    assert all(int(flag, 16) == 1 << int(bit) for bit, flag, *_ in FLAG_ROWS)


@pytest.mark.parametrize(("bit", "flag", "name", "how"), FLAG_ROWS)
def test_a_property_of_the_page_is_where_its_flag_says(
    bit: str, flag: str, name: str, how: str
) -> None:
    """Each property alone, and behind it the id: it is found only if the other is as long as said."""
    value = {
        "table": bytes.fromhex("00000008016b5300000002") + b"hi",
        "short": b"\x021a",
        "a byte": b"\1",
        "uint64": (1).to_bytes(8, "big"),
    }
    raw = next(each for begin, each in value.items() if how.startswith(begin))
    if name == "headers":
        raw = bytes.fromhex("00000009016b53000000026869")
    both = int(flag, 16) | 1 << 7
    parts = {int(bit): raw, 7: b"\x02id"}
    if name == "message_id":
        parts = {7: b"\x02id"}
    listed = both.to_bytes(2, "big") + b"".join(parts[key] for key in sorted(parts, reverse=True))
    assert IN_BATCH.message(listed, b"").message_id == "id"
