"""The bodies and keys of a run's messages, before each gets its stamp: drawn once, used again and again."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.figures.environment import CHECKOUT
from bench.records import records
from bench.run.profile import Messages
from bench.run.stamp import STAMP_BYTES, Filler

__all__ = ["Drawer"]

# So many different ones of each size, as far as they are no more than so many bytes; a broker that
# compressed, or a cache, would be fooled by a single one.
FILLERS, FILLERS_LEAST = 64, 2
FILLERS_BYTES_MAX = 64 << 20
# Sizes by chance, used again and again: one in a thousand is among them.
DRAWN = 4096
RECORDS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Drawer:
    """seed: of everything that chance decides; another one in each process."""

    messages: Messages
    seed: int

    def fillers(self) -> Iterator[Filler]:
        """Bodies without end. Raises InputInvalid for a file that has none."""
        chance = random.Random(self.seed)
        if self.messages.file:
            found = itertools.islice(records(str(CHECKOUT / self.messages.file)), RECORDS_MAX)
            padded = [each.ljust(STAMP_BYTES, b" ") for each in found]
            return itertools.cycle([Filler.of(each) for each in padded])
        parts = self.messages.sizes or ((1.0, self.messages.size),)
        sizes = [size for _, size in parts]
        pools = {
            size: [Filler.of(chance.randbytes(size)) for _ in range(_count(size))] for size in sizes
        }
        drawn = chance.choices(sizes, [part for part, _ in parts], k=DRAWN)
        return itertools.cycle([chance.choice(pools[size]) for size in drawn])

    def keys(self) -> Iterator[str]:
        """Keys without end; "" without keys. Key k0 is the hottest, by 1 / rank ** skew."""
        count, skew = self.messages.keys, self.messages.key_skew
        if not count:
            return itertools.repeat("")
        chance = random.Random(self.seed + 1)
        names = [f"k{number}" for number in range(count)]
        weights = list(itertools.accumulate(1 / (rank**skew) for rank in range(1, count + 1)))
        return (chance.choices(names, cum_weights=weights)[0] for _ in itertools.count())


def _count(size: int) -> int:
    """Of different bodies of that size."""
    return max(FILLERS_LEAST, min(FILLERS, FILLERS_BYTES_MAX // size))
