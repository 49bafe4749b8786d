"""Groups of consumers that even out, over queues with a single active consumer."""

from __future__ import annotations

import random
from collections import deque

import pytest

from messagebus.core.group import Group
from tests.support.examples import examples


class Party:
    """Members with the real `Group`, and the lines of the segments' queues, all of which bring messages."""

    def __init__(self, partitions: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.segments = [f"mb1:5672#{n}.1" for n in range(partitions)]
        self.lines: dict[str, deque[str]] = {each: deque() for each in self.segments}
        self.members: dict[str, Group] = {}
        self.unserved = 0

    def join(self, count: int) -> None:
        for _ in range(count):
            name = f"m{self.rng.getrandbits(60)}"
            self.members[name] = Group(name, len(self.segments))
            for line in self.lines.values():
                line.append(name)

    def leave(self, count: int) -> None:
        for name in self.rng.sample(sorted(self.members), count):
            del self.members[name]
            for line in self.lines.values():
                if name in line:
                    line.remove(name)

    def active(self, name: str) -> list[str]:
        return [each for each, line in self.lines.items() if line and line[0] == name]

    def turn(self) -> None:
        for name in self.rng.sample(sorted(self.members), len(self.members)):
            group = self.members[name]
            wanted = set(
                group.wanted(self.segments, self.active(name), len(self.members), self.rng.random())
            )
            for segment, line in self.lines.items():
                if segment not in wanted and name in line:
                    line.remove(name)
                elif segment in wanted and name not in line:
                    line.append(name)
        self.unserved += sum(not line for line in self.lines.values())

    @property
    def loads(self) -> list[int]:
        return sorted(len(self.active(name)) for name in self.members)

    @property
    def hand_overs(self) -> int:
        return sum(group.let_go for group in self.members.values())


@pytest.mark.parametrize("seed", range(examples(10)))
@pytest.mark.parametrize(
    ("partitions", "first", "then", "gone", "hand_overs_max"),
    [(32, 1, 7, 0, 80), (64, 0, 50, 0, 160), (32, 8, 0, 4, 60), (8, 0, 20, 0, 20)],
)
def test_a_group_evens_out_and_none_stays_unserved(
    partitions: int, first: int, then: int, gone: int, hand_overs_max: int, seed: int
) -> None:
    party = Party(partitions, seed)
    party.join(first)
    for _ in range(3 if first else 0):
        party.turn()
    party.join(then)
    party.leave(gone)
    party.unserved = 0
    for _ in range(200):
        party.turn()
    share = -(-partitions // len(party.members))
    assert max(party.loads) <= share
    assert sum(party.loads) == partitions
    assert party.unserved == 0
    assert party.hand_overs <= hand_overs_max


def test_a_member_alone_lets_nothing_go() -> None:
    group = Group("a", 3)
    segments = ["x#0.1", "x#1.1", "x#2.1"]
    for _ in range(20):
        assert group.wanted(segments, segments, 1, 0.1) == segments
    assert group.let_go == 0


def test_with_fewer_than_its_share_a_member_waits_everywhere() -> None:
    segments = [f"x#{n}.1" for n in range(32)]
    assert Group("a", 32).wanted(segments, segments[:3], 8, 0.0) == segments
    full = Group("a", 32).wanted(segments, segments[:4], 8, 0.9)
    assert set(segments[:4]) <= set(full)
    assert len(full) < 32


def test_members_that_have_their_share_stand_by_for_segments_of_others() -> None:
    segments = [f"{partition}.1" for partition in range(32)]
    groups = [Group(f"m{number}", 32) for number in range(8)]
    waited_for = set()
    for number, group in enumerate(groups):
        active = segments[4 * number : 4 * number + 4]
        wanted = group.wanted(segments, active, 8, draw=0.9)
        assert set(active) <= set(wanted) < set(segments)
        waited_for.update(set(wanted) - set(active))
    assert len(waited_for) > 16
