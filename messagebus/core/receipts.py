"""Where the answer to each delivery must go, and whether it still can.

Decides; sends nothing. A broker's *epoch* counts the links to it, so a receipt of an earlier link
never matches: its broker has requeued that message long ago, and the tag now means another.

Acknowledgements are coalesced: `flush` returns the fewest acks that answer everything answered
since the last call and nothing else. Only a prefix of tags without a gap becomes one ``multiple``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Ack", "Receipt", "Receipts"]


class Receipt(NamedTuple):
    """Names one delivery for ever: broker ``host:port``, which link to it, AMQP delivery tag."""

    broker: str
    epoch: int
    tag: int


class Ack(NamedTuple):
    """Send basic.ack on the link of this broker."""

    broker: str
    tag: int
    multiple: bool


@dataclass(slots=True)
class _Link:
    epoch: int
    owed: dict[int, None]  # tags without an answer, in the order of delivery
    acked: set[int]  # answered by ack and not yet sent


class Receipts:
    """The deliveries of all live links that have no answer yet. Not thread-safe."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._links: dict[str, _Link] = {}

    def connected(self, broker: str) -> int:
        """A new link to this broker is open. Returns its epoch, from 1."""
        epoch = self._epochs[broker] = self._epochs.get(broker, 0) + 1
        self._links[broker] = _Link(epoch, {}, set())
        return epoch

    def delivered(self, broker: str, tag: int) -> Receipt:
        """A message arrived on the live link of this broker."""
        link = self._links[broker]
        link.owed[tag] = None
        return Receipt(broker, link.epoch, tag)

    def ack(self, receipt: Receipt) -> bool:
        """True exactly once, and only while the delivering link lives; `flush` returns it then."""
        link = self._live(receipt)
        if link is None:
            return False
        del link.owed[receipt.tag]
        link.acked.add(receipt.tag)
        return True

    def nack(self, receipt: Receipt) -> bool:
        """As `ack`, but the caller sends the nack itself, at once."""
        link = self._live(receipt)
        if link is None:
            return False
        del link.owed[receipt.tag]
        return True

    def flush(self) -> Iterator[Ack]:
        """The acks to send now. After it nothing answered is unsent."""
        for broker, link in self._links.items():
            if link.acked:
                yield from self._coalesced(broker, link)

    def _coalesced(self, broker: str, link: _Link) -> Iterator[Ack]:
        # Every tag below the lowest owed one has its answer; a nack in between is sent already, so
        # "multiple" up to the highest acked tag below that touches nothing else.
        lowest_owed = next(iter(link.owed), None)
        single = set[int]()
        if lowest_owed is not None:
            single = {tag for tag in link.acked if tag > lowest_owed}
        prefix = link.acked - single if single else link.acked
        if prefix:
            yield Ack(broker, max(prefix), len(prefix) > 1)
        for tag in sorted(single):
            yield Ack(broker, tag, False)
        link.acked = set()

    def is_live(self, receipt: Receipt) -> bool:
        """Whether the link that delivered still lives."""
        link = self._links.get(receipt.broker)
        return link is not None and link.epoch == receipt.epoch

    def _live(self, receipt: Receipt) -> _Link | None:
        link = self._links.get(receipt.broker)
        if link is None or link.epoch != receipt.epoch or receipt.tag not in link.owed:
            return None
        return link

    def disconnected(self, broker: str) -> int:
        """The link is gone. Returns how many deliveries it still owed an answer for."""
        link = self._links.pop(broker, None)
        return len(link.owed) if link else 0

    def owed(self, broker: str) -> int:
        link = self._links.get(broker)
        return len(link.owed) if link else 0

    @property
    def owed_in_all(self) -> int:
        return sum(len(link.owed) for link in self._links.values())
