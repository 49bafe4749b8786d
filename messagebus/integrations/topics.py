"""Topics whose messages are of one type, checked where they are published and where they are handled."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Generic, TypeVar, Unpack

from messagebus import App, Options, Published, Publisher, Subscription
from messagebus import Topic as Name
from messagebus.payloads import Codec, as_payload
from messagebus.payloads.binding import name_of

__all__ = ["Topic"]

T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., object])


class Topic(Generic[T]):
    """A topic of messages of one type.

        orders = Topic[Order]("orders")
        await orders.publish(app, Order(17))

        @orders.subscriber(app, "billing")
        async def bill(order: Order) -> None: ...

    codec: of its messages, where the app has none for them. `type` is what stands in the brackets.
    """

    def __init__(self, name: str, *, codec: Codec | None = None) -> None:
        """Raises NameInvalid."""
        self.name = Name(name)
        self._codecs = () if codec is None else (codec,)

    @property
    def type(self) -> Any:
        """The type of its messages. Raises TypeError where none was said: ``Topic[Order]("orders")``."""
        made = getattr(self, "__orig_class__", None)
        if made is None:
            raise TypeError(f'{self.name}: say the type: Topic[Order]("{self.name}")')
        return typing.get_args(made)[0]

    async def publish(self, app: App, value: T, **options: Unpack[Options]) -> Published:
        """Publish and wait for the confirm, as `App.publish`."""
        return await app.publish(self.name, as_payload(value, self._codecs), **options)

    def send_safe(self, publisher: Publisher, value: T, **options: Unpack[Options]) -> Published:
        """Publish and wait for the confirm, as `Publisher.send_safe`."""
        return publisher.send_safe(self.name, as_payload(value, self._codecs), **options)

    def subscriber(self, app: App, subscription: str, **how: Any) -> Callable[[H], H]:
        """Declare a handler, as `App.subscriber`. Raises TypeError for one that takes another type."""
        declare = app.subscriber(Subscription(self.name, subscription), **how)

        def checked(handler: H) -> H:
            hints = typing.get_type_hints(handler)
            hints.pop("return", None)
            wanted = list[self.type] if how.get("batch") else self.type  # type: ignore[name-defined]
            if wanted not in hints.values():
                raise TypeError(
                    f"{name_of(handler)}: no parameter of {self.type!r}, as {self.name}"
                )
            return declare(handler)

        return checked
