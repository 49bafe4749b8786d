"""Hooks of telemetry: calls of a client about the messages that pass through it.

    class Sizes(Hooks):
        def published(self, destination, message, published):
            print(destination, len(message.body), published.outcome)

    publisher = Publisher(bus, hooks=[Sizes()])

Clients without hooks pay one attribute test a message for this. Ready-made hooks:
`messagebus.telemetry`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from messagebus.message import Delivery, Message
from messagebus.stats import Published

__all__ = ["Hooks"]

_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


class Hooks:
    """Methods that are called for each message; each does nothing until a subclass overrides it.

    Several hooks of one client are called in their order. They must be quick and never wait: some are
    called on the loop that serves all links. When one raises anything, SystemExit included, this is logged,
    and the message goes its way without the hook's addition; telemetry never loses a message. Only a
    KeyboardInterrupt of the main thread is passed on. One object may serve any number of clients, on several
    threads at once.
    """

    __slots__ = ()

    def publishing(self, destination: str, message: Message) -> Message:
        """Return the message that is about to be published, or a copy with headers added.

        destination: as ``orders`` or ``queue:jobs``. message: has its id already; only the headers of the
        returned message count. On the caller's thread, in its context.
        """
        return message

    def published(self, destination: str, message: Message, published: Published) -> None:
        """Take note of a publish's end: once for each `publishing`, with the very object it returned.

        A publish that was never accepted (BacklogFull, Stopped) ends as refused. On the loop's thread, or
        where the call ended.
        """

    def spooled(self, destination: str, published: Published) -> None:
        """Take note that a broker confirmed a message of the spool, perhaps of an earlier process.

        Its `published` was told before, with the outcome SPOOLED. On the loop's thread.
        """

    def publishing_many(self, destination: str) -> AbstractContextManager[None]:
        """Return a context around one call that publishes several messages, with a `publishing` for each."""
        return _NOTHING

    def handling(self, delivery: Delivery) -> AbstractContextManager[None]:
        """Return a context around each run of a handler; entered in the context that the handler runs in.

        It sees what the handler raises and must not suppress it.
        """
        return _NOTHING

    def handling_many(self, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        """Return a context around each run of a batch handler; by default `handling` of each delivery."""
        if type(self).handling is Hooks.handling:
            return _NOTHING
        return _all([self.handling(delivery) for delivery in deliveries])

    def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
        """Take note of a run that has ended and of its delivery's answer.

        answer: ``ack``, ``retry``, ``park``, ``drop``, or ``stale``: its link had ended, so the broker
        delivers it again. error: the exception of the handler, if it raised one.
        """

    def deduplicated(self, delivery: Delivery, verdict: str) -> None:
        """Take note of a delivery that no handler gets now, because of deduplication.

        verdict: ``duplicate``: acked, because its message had ended before; ``deferred``: too many wait for
        runs elsewhere, it comes again later; ``park``: too many of its runs never ended, or it is too old.
        """


@contextlib.contextmanager
def _all(contexts: Sequence[AbstractContextManager[None]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for each in contexts:
            stack.enter_context(each)
        yield
