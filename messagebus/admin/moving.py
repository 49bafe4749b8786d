"""Moves of messages from one broker to others, for a broker that leaves or whose queues nobody reads.

Ids, headers, keys and times stay; each message is answered at the old broker after a new one has
confirmed it. This needs a user who may read every queue there and write to the default exchange and the
delay exchanges of the others: operators have one, applications do not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from messagebus._io.admin.moving import WINDOW, Mover
from messagebus.config import BusConfig
from messagebus.errors import ConfigError, LinkError, TopologyError

__all__ = ["MOVES_AT_ONCE", "MessagesMoved", "MovingProgress", "move_messages"]

MOVES_AT_ONCE = WINDOW
"""Upper bound of the messages that are on both brokers after a move that was killed."""
# Messages of one queue that are taken ahead and held in memory.
AHEAD_BYTES_MAX = 64 * 1024 * 1024
# Each queue goes to this many brokers, the next queue to others: fewer links.
TARGETS_MAX = 8


@dataclass(frozen=True, slots=True)
class MessagesMoved:
    """Result of a move.

    moved: number of messages by (queue, broker that they went to). faults: queue -> reason.
    """

    moved: Mapping[tuple[str, str], int]
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of messages over all queues and brokers."""
        return sum(self.moved.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingProgress:
    """Progress of a move. queue: the one that is being moved. total: messages moved so far, of all queues."""

    queue: str
    total: int


def move_messages(
    bus: BusConfig,
    queues: Iterable[str],
    *,
    source: str,
    targets: Sequence[str],
    message_bytes: Mapping[str, int] | None = None,
    on_progress: Callable[[MovingProgress], None] = lambda progress: None,
) -> MessagesMoved:
    """Move all ready messages in these queues of `source` to the queues of the same names elsewhere.

    bus: how to log in; its own broker is not looked at. queues: AMQP's names, ``mb.sub/orders/billing``.
    source, targets: brokers, ``host:port``. message_bytes: approximate size of a queue's messages: fewer
    large ones are taken ahead. Messages of one key stay in their order, others are spread.
    A delayed message waits for the rest of its time, rounded up to the next step; a message that expires
    has its whole time again. A target that does not answer, or confirms nothing for 30 s, is left out from
    then on, unless it is the last. Interrupted or killed, it loses nothing: at most MOVES_AT_ONCE messages
    are there twice, under their ids, and as many for each target that was left out. Raises ConfigError
    without targets.
    """
    if not targets:
        raise ConfigError("no other broker to move to")
    sizes = message_bytes or {}
    windows = {
        queue: min(WINDOW, max(1, AHEAD_BYTES_MAX // max(1, sizes.get(queue, 1))))
        for queue in queues
    }
    return asyncio.run(_move(bus, windows, source, list(targets), on_progress))


async def _move(
    bus: BusConfig,
    windows: Mapping[str, int],
    source: str,
    targets: list[str],
    on_progress: Callable[[MovingProgress], None],
) -> MessagesMoved:
    done, faults, left = Counter[tuple[str, str]](), dict[str, str](), list(targets)
    for number, (queue, window) in enumerate(windows.items()):

        def moved(broker: str, count: int, queue: str = queue) -> None:
            done[queue, broker] += count
            on_progress(MovingProgress(queue=queue, total=done.total()))

        while True:
            some = _some(left, number)
            try:
                await Mover(bus, source, some).move(queue, on_moved=moved, window=window)
            except (LinkError, TopologyError) as fault:
                if isinstance(fault, LinkError) and fault.broker in some and len(left) > 1:
                    left.remove(fault.broker)
                    continue
                faults[queue] = str(fault)
            break
    return MessagesMoved(dict(done), faults)


def _some(targets: list[str], number: int) -> list[str]:
    """Return the next TARGETS_MAX targets, other ones for each queue."""
    begin = number * TARGETS_MAX % len(targets)
    return [*targets[begin:], *targets[:begin]][:TARGETS_MAX]
