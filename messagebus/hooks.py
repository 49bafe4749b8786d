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

    The hooks of one client are called in their order. They must not block: some are called on the event loop
    that serves all connections. If a hook raises anything, SystemExit included, the client logs it and goes
    on without what the hook would have added: a hook never loses a message. Only a KeyboardInterrupt on the
    main thread is passed on. One object may serve any number of clients, on several threads at once.
    """

    __slots__ = ()

    def publishing(self, destination: str, message: Message) -> Message:
        """Return the message that is about to be published, or a copy with headers added.

        destination: such as ``orders`` or ``queue:jobs``. message: it has its id already. Of the returned
        message only the headers are used. Thread: the caller's, in its context.
        """
        return message

    def published(self, destination: str, message: Message, published: Published) -> None:
        """Called with the result of a publish, once for each `publishing`, with the message that it returned.

        A publish that was not accepted (BacklogFull, Stopped) ends as refused. Thread: the client's, or that
        of the call.
        """

    def spooled(self, destination: str, published: Published) -> None:
        """Called when a broker has confirmed a message of the spool, perhaps of an earlier process.

        `published` was called before, with the outcome SPOOLED. Thread: the client's.
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
        """Called when a run of a handler has ended and its delivery is answered.

        answer: ``ack``, ``retry``, ``park``, ``drop``, or ``stale``: the connection had ended, so the broker
        redelivers the message. error: the exception of the handler; None if it raised none.
        """

    def deduplicated(self, delivery: Delivery, verdict: str) -> None:
        """Called for a delivery that no handler receives now, because of deduplication.

        verdict: ``duplicate``: acked, because a run of its message had succeeded; ``deferred``: too many
        deliveries wait for runs in other consumers, so it is delivered again later; ``park``: too many of its
        runs never ended, or it is too old.
        """


@contextlib.contextmanager
def _all(contexts: Sequence[AbstractContextManager[None]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for each in contexts:
            stack.enter_context(each)
        yield
