"""Topics whose messages are of one type, checked where they are published and where they are handled."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from messagebus import App, ConsumerConfig, Published, Publisher, RetryPolicy, Subscription
from messagebus import Topic as Name
from messagebus.message import Header, given_options
from messagebus.payloads import Codec, as_payload
from messagebus.payloads.binding import Middleware, name_of

if TYPE_CHECKING:
    from messagebus.consumer import Deduplication, Order

__all__ = ["Topic"]

T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., object])


class Topic(Generic[T]):
    """A topic of messages of one type.

        orders = Topic[Order]("orders")
        await orders.publish(app, Order(17))

        @orders.subscriber(app, "billing")
        async def bill(order: Order) -> None: ...

    codec: for its messages, if the app has none for them. type: the type in the brackets.
    """

    def __init__(self, name: str, *, codec: Codec | None = None) -> None:
        """Raises NameInvalid."""
        self.name = Name(name)
        self._codecs = () if codec is None else (codec,)

    @property
    def type(self) -> Any:
        """The type of its messages. Raises TypeError if none was given: ``Topic[Order]("orders")``."""
        made = getattr(self, "__orig_class__", None)
        if made is None:
            raise TypeError(f'{self.name}: say the type: Topic[Order]("{self.name}")')
        return typing.get_args(made)[0]

    async def publish(
        self,
        app: App,
        value: T,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, Header] | None = None,
        key: str | None = None,
        priority: int | None = None,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_id: str | None = None,
        type: str | None = None,
        content_encoding: str | None = None,
        app_id: str | None = None,
        deliver_after_s: float | None = None,
        deliver_at: datetime | float | None = None,
        redundant: bool | str | None = None,
    ) -> Published:
        """Publish and wait for the confirm, as `App.publish`."""
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        payload = as_payload(value, self._codecs)
        return await app.publish(self.name, payload, timeout_s=timeout_s, **given_options(given))

    def send_safe(
        self,
        publisher: Publisher,
        value: T,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, Header] | None = None,
        key: str | None = None,
        priority: int | None = None,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_id: str | None = None,
        type: str | None = None,
        content_encoding: str | None = None,
        app_id: str | None = None,
        deliver_after_s: float | None = None,
        deliver_at: datetime | float | None = None,
        redundant: bool | str | None = None,
    ) -> Published:
        """Publish and wait for the confirm, as `Publisher.send_safe`."""
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        payload = as_payload(value, self._codecs)
        return publisher.send_safe(self.name, payload, timeout_s=timeout_s, **given_options(given))

    def subscriber(
        self,
        app: App,
        subscription: str,
        *,
        retry: RetryPolicy | None = None,
        concurrency: int = 1,
        time_limit_s: float | None = None,
        config: ConsumerConfig | None = None,
        batch: int | None = None,
        linger_s: float | None = None,
        dedup: Deduplication = None,
        order: Order | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> Callable[[H], H]:
        """Declare a handler, as `App.subscriber` does. Raises TypeError if it takes another type."""
        declare = app.subscriber(
            Subscription(self.name, subscription),
            retry=retry,
            concurrency=concurrency,
            time_limit_s=time_limit_s,
            config=config,
            batch=batch,
            linger_s=linger_s,
            dedup=dedup,
            order=order,
            middleware=middleware,
        )

        def checked(handler: H) -> H:
            hints = typing.get_type_hints(handler)
            hints.pop("return", None)
            wanted = list[self.type] if batch else self.type  # type: ignore[name-defined]
            if wanted not in hints.values():
                raise TypeError(
                    f"{name_of(handler)}: no parameter of {self.type!r}, as {self.name}"
                )
            return declare(handler)

        return checked
