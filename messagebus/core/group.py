"""The segments of a partitioned topic that one consumer of a group attaches to: the group evens out.

Decides; counts and attaches nothing. No member knows the others: each knows how many there are. The broker
serves, of those attached to a segment's queue, the one that came first, and tells nobody; a member is
*active* in a segment when it was delivered something of it.

1. A member that is active in more than its share lets some of the surplus go: it answers what is out,
   closes the channel, and attaches again later, at the end of the line.
2. A member that has its share waits only in some of the other segments; one that has less waits in all.
   As share times members is at least the number of partitions, somebody has less whenever a partition is
   served by nobody, so none stays unserved.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from zlib import crc32

# Members that wait behind the active one, on average, when all have their share. With these two 7 members
# that join 1 on 32 partitions are even after 43 rounds and 58 hand-overs, 50 on 64 after 70 and 155.
STAND_BY = 2
# Of the surplus, what is let go in a round.
LET_GO_SHARE = 16

# Deliveries of a segment that a consumer may hold, the same for every consumer there is, and so a part of
# the wire: docs/WIRE.md. A quorum queue keeps returned messages in the order of their returns. Were the next
# consumer served less than all that the last one held, and died, what it returns would come behind the rest:
# messages 31 to 41 behind 42 (RabbitMQ 3.10.8: prefetch 12, then 11). With one size it always takes all.
SEGMENT_PREFETCH = 32


class Group:
    """One member. name: differs from the others'. partitions: of the topic."""

    def __init__(self, name: str, partitions: int) -> None:
        self._name, self._partitions = name, partitions
        self.let_go = 0
        """Segments that it gave to others, in all."""

    def share(self, members: int) -> int:
        """Return the number of partitions that are enough for one of this many members."""
        return -(-self._partitions // max(1, members))

    def wanted(
        self, segments: Sequence[str], active: Collection[str], members: int, draw: float
    ) -> list[str]:
        """Return the segments to be attached to from now on; called once a round.

        active: those that are served to this member. draw: a random number from 0 to 1.
        """
        share = self.share(members)
        surplus = len(active) - share
        gone: set[str] = set()
        # By chance one half of the members, so that not all move at once.
        if surplus > 0 and draw < 0.5:
            some = sorted(active, key=lambda each: crc32(f"{draw} {each}".encode()))
            gone = set(some[: -(-surplus // LET_GO_SHARE)])
            self.let_go += len(gone)
        is_full = surplus >= 0
        return [
            each
            for each in segments
            if each not in gone
            and (each in active or not is_full or self._stands_by(each, members))
        ]

    def _stands_by(self, segment: str, members: int) -> bool:
        if members <= 1 + STAND_BY:
            return True
        drawn = crc32(f"{self._name} {segment}".encode()) % 1_000_000
        return drawn < 1_000_000 * STAND_BY // (members - 1)
