"""Compression of a batch: its size, and the CPU time of both sides per message."""

from __future__ import annotations

import gc
import json
import secrets
import time
from collections.abc import Callable, Iterator

from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import Group, Setup, repeat_command
from messagebus import Message
from messagebus._io.amqp.batch import decode_batch, encode_entry
from messagebus._io.amqp.packed import entries_of, packed
from messagebus._io.amqp.properties import encode_entry as encode_properties

NAME = "reach.deflate"
ROWS, ROW_BYTES, BATCHES = 50, 200, 2_000
GOAL_SIZE, GOAL_BOTH_US = 0.35, 1.5


def row(number: int) -> bytes:
    """Return an event of ROW_BYTES bytes of JSON; no two are equal."""
    event = {
        "order": 1_000_000 + number,
        "customer": f"customer-{number * 7919 % 1000:03}",
        "at": f"2026-11-30T08:{number % 60:02}:{number * 17 % 60:02}Z",
        "lines": [{"article": f"a-{number * 31 % 5000:04}", "count": number % 9 + 1}],
        "total": number * 37 % 100_000,
        "token": secrets.token_hex(8),
    }
    text = json.dumps(event)
    return (text[:-1] + f', "note": "{"x" * (ROW_BYTES - len(text) - 12)}"}}').encode()


def deflate_figures(setup: Setup) -> Iterator[Figure]:
    make, count = Maker(NAME, repeat_command(NAME, setup.repeat)), setup.part(BATCHES, 100)
    parts: list[bytes] = []
    for number in range(ROWS):
        encode_entry(
            parts, encode_properties(Message(body=b""), secrets.token_hex(16)), row(number)
        )
    plain = b"".join(parts)
    properties, small = packed(plain, "id", 0)
    ways: dict[str, Callable[[], object]] = {
        "pack": lambda: packed(plain, "id", 0),
        "unpack": lambda: entries_of(properties, small),
        "read": lambda: decode_batch(plain),
    }
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(setup.repeat):
        for name, work in ways.items():
            costs[name].append(_us(work, count) / ROWS)
    batch = f"A batch of {ROWS} messages of {ROW_BYTES} bytes of JSON, compressed"
    yield make("size", f"{batch}: its size", len(small) / len(plain), "times", (at_most, GOAL_SIZE))
    both = [
        pack + unpack - read
        for pack, unpack, read in zip(costs["pack"], costs["unpack"], costs["read"], strict=True)
    ]
    goal = at_most, GOAL_BOTH_US
    yield make("cpu_us", f"{batch}: CPU time of both sides a message", both, "us", goal)


def _us(work: Callable[[], object], count: int) -> float:
    gc.collect()
    began_s = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - began_s) * 1e6 / count


GROUP = Group(NAME, 0, "no brokers", deflate_figures)
