"""The one seam of telemetry: what a client tells about the messages that pass through it.

    class Sizes(Hooks):
        def published(self, destination, message, published):
            print(destination, len(message.body), published.outcome)

    publisher = Publisher(bus, hooks=[Sizes()])

Clients without hooks pay one attribute test a message for this. What is there to be used:
`messagebus.telemetry`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from messagebus.message import Delivery, Message
from messagebus.outcome import Published

__all__ = ["Hooks"]

_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


class Hooks:
    """Called for each message; every method does nothing until a subclass says otherwise.

    Several hooks of one client are called in their order. They must be quick and never wait: some are
    called on the loop that serves all links. One that raises is logged, and the message goes its way
    without what it would have added; telemetry never loses a message. One object may serve any number
    of clients, on several threads at once.
    """

    __slots__ = ()

    def publishing(self, destination: str, message: Message) -> Message:
        """A message is about to be published. Returns it, or a copy with headers added.

        destination: as ``orders`` or ``queue:jobs``. message: has its id already; anything but the
        headers of what is returned is ignored. On the caller's thread, in its context.
        """
        return message

    def published(self, destination: str, message: Message, published: Published) -> None:
        """The publish has ended: once for each `publishing`, with the very object it returned.

        One that was never accepted (BacklogFull, Stopped) ends as refused. On the loop's thread, or
        where the call ended.
        """

    def publishing_many(self, destination: str) -> AbstractContextManager[None]:
        """Entered around one call that publishes several messages, with a `publishing` for each."""
        return _NOTHING

    def handling(self, delivery: Delivery) -> AbstractContextManager[None]:
        """Entered around each run of a handler, in the context that the handler runs in.

        It sees what the handler raises and must not suppress it.
        """
        return _NOTHING

    def handling_many(self, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        """Entered around each run of a batch handler; `handling` of each, if nothing else is said."""
        if type(self).handling is Hooks.handling:
            return _NOTHING
        return _all([self.handling(delivery) for delivery in deliveries])

    def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
        """A run has ended, and the delivery got its answer.

        answer: ``ack``, ``retry``, ``park``, ``drop``, or ``stale``: its link had ended, so the broker
        delivers it again. error: what the handler raised, if it did.
        """


@contextlib.contextmanager
def _all(contexts: Sequence[AbstractContextManager[None]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for each in contexts:
            stack.enter_context(each)
        yield
