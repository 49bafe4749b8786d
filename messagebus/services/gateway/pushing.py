"""Push: the deliveries of a subscription as signed webhooks, see `messagebus.tools.webhook`."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from messagebus import (
    AsyncConsumer,
    ConfigError,
    ConsumerConfig,
    Delivery,
    Queue,
    RetryPolicy,
    Subscription,
)
from messagebus.errors import reason_of
from messagebus.integrations import cloudevents
from messagebus.services.gateway.clients import Bus
from messagebus.services.gateway.config import PushConfig
from messagebus.services.gateway.metrics import Metrics
from messagebus.services.gateway.problems import encoded
from messagebus.tools.webhook import Posting, Refused, Target, as_body, opened, read_secrets
from messagebus.topology import parse_wanted

log = logging.getLogger("messagebus.gateway")

FIRST_DELAY_S, LOOK_S, STOP_S = 1.0, 3.0, 5.0


class Push:
    """One subscription on its way to one address."""

    def __init__(self, config: PushConfig, bus: Bus, metrics: Metrics) -> None:
        """Read its settings. Raises ConfigError."""
        self._config, self._metrics = config, metrics
        try:
            self._target = Target(config.url, ["*"] if config.private else [], config.timeout_s)
            self._keys = read_secrets(config.secret_file)
        except ConfigError as fault:
            raise ConfigError(f"push {config.subscription}: {fault}") from fault
        source = parse_wanted(config.subscription)
        if not isinstance(source, Subscription | Queue):
            raise ConfigError(
                f"push.subscription {config.subscription!r}: TOPIC/NAME or queue:NAME"
            )
        prefetch = min(2_000, 2 * config.concurrency)
        self._consumer: AsyncConsumer = bus.consumer(
            source, ConsumerConfig(prefetch=prefetch), None
        )
        self._stack = contextlib.AsyncExitStack()
        self._running: asyncio.Task[int] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin. Raises ConfigError for an address of this host or a private network, unless allowed."""
        config = self._config
        try:
            async with asyncio.timeout(min(LOOK_S, config.timeout_s)):
                await self._target.request({}, b"")
        except Refused as fault:
            raise ConfigError(f"push.url: {fault}; private = true allows it") from fault
        except OSError as fault:  # each request looks again
            log.warning("push url=%s reason=%r", self._target.url.host, reason_of(fault))
        posting = Posting(
            await self._stack.enter_async_context(opened(config.concurrency)),
            self._target,
            self._keys,
            form=_as_event if config.format == "cloudevents" else as_body,
            on_answer=self._count,
        )
        await self._consumer.start()
        policy = RetryPolicy(attempts_max=config.attempts_max, first_delay_s=FIRST_DELAY_S)
        running = self._consumer.run(
            posting.__call__, concurrency=config.concurrency, retry=policy, grace_s=STOP_S
        )
        self._running = asyncio.create_task(running)
        self._running.add_done_callback(self._tell)
        self._ending = asyncio.create_task(self._end_when_gone(posting))

    async def stop(self) -> None:
        """End, with the requests that are under way."""
        await self._consumer.stop(STOP_S)
        tasks = [each for each in (self._running, self._ending) if each is not None]
        if self._ending is not None:
            self._ending.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()

    async def _end_when_gone(self, posting: Posting) -> None:
        await posting.gone.wait()
        log.error("push ends subscription=%s reason='410 Gone'", self._config.subscription)
        await self._consumer.stop(STOP_S)  # requests under way may end
        assert self._running is not None
        self._running.cancel()

    def _tell(self, running: asyncio.Task[int]) -> None:
        if not running.cancelled() and (fault := running.exception()) is not None:
            log.error("push ends subscription=%s reason=%r", self._config.subscription, str(fault))

    def _count(self, status: str) -> None:
        self._metrics.pushes.labels(self._config.subscription, status).inc()


def _as_event(delivery: Delivery) -> tuple[bytes, str]:
    return encoded(cloudevents.as_event(delivery)), cloudevents.STRUCTURED
