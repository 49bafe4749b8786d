from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

from bench.run.bodies import Drawer
from bench.run.profile import Messages
from bench.run.stamp import STAMP_BYTES


def sizes(messages: Messages, count: int = 64) -> Counter[int]:
    fillers = Drawer(messages, seed=1).fillers()
    return Counter(len(next(fillers).head) + STAMP_BYTES for _ in range(count))


def test_sizes_are_as_asked() -> None:
    assert sizes(Messages(size=100)) == {100: 64}
    found = sizes(Messages(sizes=((0.75, 50), (0.25, 500))))
    assert set(found) == {50, 500}
    assert found[50] > found[500]


def test_a_rare_size_is_as_rare_as_asked() -> None:
    found = sizes(Messages(sizes=((0.99, 50), (0.01, 500))), 4096)
    assert 20 <= found[500] <= 65


def test_large_bodies_are_few_and_not_all_the_same() -> None:
    fillers = Drawer(Messages(size=16 << 20), seed=1).fillers()
    assert 2 <= len({next(fillers).check for _ in range(64)}) <= 4


def test_real_payloads_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_text("a long enough first record\n\nshort\n")
    assert sizes(Messages(file=str(path)), 4) == {26: 2, STAMP_BYTES: 2}


def test_keys_are_skewed_as_asked_and_none_without() -> None:
    even = Counter(itertools.islice(Drawer(Messages(keys=4), seed=1).keys(), 4000))
    assert max(even.values()) < 1.3 * min(even.values())
    skewed = Counter(itertools.islice(Drawer(Messages(keys=4, key_skew=2), seed=1).keys(), 4000))
    assert skewed["k0"] > 3 * skewed["k1"] > 3 * skewed["k3"]
    assert next(Drawer(Messages(), seed=1).keys()) == ""
