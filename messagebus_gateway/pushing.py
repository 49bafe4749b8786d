"""Push: the deliveries of a subscription as signed webhooks (Standard Webhooks).

2xx acks. 408, 425, 429, 5xx and no answer: another run, as `RetryPolicy` says, or after the answer's
Retry-After. 410: stop, and say so. Any other answer parks. Redirects are never followed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import logging
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from messagebus import (
    AsyncConsumer,
    ConfigError,
    ConsumerConfig,
    Delivery,
    Park,
    Queue,
    RetryLater,
    RetryPolicy,
    Secret,
    Subscription,
)
from messagebus.topology import parse_wanted
from messagebus_gateway.clients import Bus
from messagebus_gateway.config import PushConfig
from messagebus_gateway.metrics import Metrics
from messagebus_gateway.problems import encoded
from messagebus_integrations import cloudevents

__all__ = ["Push", "read_secret", "signed"]

log = logging.getLogger("messagebus.gateway")

AGAIN = {408, 425, 429}
GONE = 410
RETRY_AFTER_S_MAX = 3_600
SHOWN_BYTES = 1_024
FIRST_DELAY_S, STOP_S = 1.0, 5.0


def read_secret(path: str) -> Secret:
    """Read a secret of Standard Webhooks, ``whsec_`` and Base64. Raises ConfigError, which shows nothing."""
    try:
        text = Path(path).read_text().strip()
        if not base64.b64decode(text.removeprefix("whsec_"), validate=True):
            raise ValueError
    except OSError as fault:
        raise ConfigError(f"push.secret_file {path}: {fault.strerror}") from fault
    except ValueError:
        raise ConfigError(f"push.secret_file {path}: whsec_ and Base64 wanted") from None
    return Secret(text)


def signed(secret: Secret, message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """Return the headers that sign a webhook."""
    key = base64.b64decode(secret.reveal().removeprefix("whsec_"))
    made = hmac.new(key, f"{message_id}.{at_s}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1,{base64.b64encode(made).decode()}",
    }


class Push:
    """One subscription on its way to one address."""

    def __init__(self, config: PushConfig, bus: Bus, metrics: Metrics) -> None:
        """Read its settings. Raises ConfigError."""
        self._config, self._metrics = config, metrics
        self._secret = read_secret(config.secret_file)
        source = parse_wanted(config.subscription)
        if not isinstance(source, Subscription | Queue):
            raise ConfigError(
                f"push.subscription {config.subscription!r}: TOPIC/NAME or queue:NAME"
            )
        prefetch = min(2_000, 2 * config.concurrency)
        self._consumer: AsyncConsumer = bus.consumer(
            source, ConsumerConfig(prefetch=prefetch), None
        )
        self._http = httpx.AsyncClient(timeout=config.timeout_s, trust_env=False)
        self._running: asyncio.Task[int] | None = None
        self._ending: asyncio.Task[int] | None = None

    async def start(self) -> None:
        """Begin. Raises ConfigError for an address of this host or a private network, unless allowed."""
        if not self._config.private:
            await _check_public(self._config.url)
        await self._consumer.start()
        policy = RetryPolicy(attempts_max=self._config.attempts_max, first_delay_s=FIRST_DELAY_S)
        running = self._consumer.run(
            self._handle, concurrency=self._config.concurrency, retry=policy, grace_s=STOP_S
        )
        self._running = asyncio.create_task(running)

    async def stop(self) -> None:
        """End, with the requests that are under way."""
        await self._consumer.stop(STOP_S)
        if self._running is not None:
            await self._running
        await self._http.aclose()

    async def _handle(self, delivery: Delivery) -> None:
        config = self._config
        headers, body = {"content-type": delivery.content_type}, delivery.body
        if config.format == "cloudevents":
            headers = {"content-type": cloudevents.STRUCTURED}
            body = encoded(cloudevents.as_event(delivery))
        headers |= signed(self._secret, delivery.message_id, int(time.time()), body)
        status, retry_after, shown = 0, "", b""
        try:
            async with (
                asyncio.timeout(config.timeout_s),
                self._http.stream("POST", config.url, content=body, headers=headers) as answer,
            ):
                status = answer.status_code
                retry_after = answer.headers.get("retry-after", "")
                # The status decides. A body may have no end.
                async for part in answer.aiter_raw():
                    shown += part[:SHOWN_BYTES]
                    if len(shown) >= SHOWN_BYTES:
                        break
        except (httpx.HTTPError, TimeoutError) as fault:
            if not status:
                self._count("none")
                raise RetryLater(reason=f"no answer: {type(fault).__name__}") from None
        self._count(str(status))
        if 200 <= status < 300:
            return
        if status == GONE:
            log.error("push ends subscription=%s reason='410 Gone'", config.subscription)
            self._ending = self._ending or asyncio.create_task(self._consumer.stop(STOP_S))
            raise RetryLater(reason="410 Gone")
        if status in AGAIN or status >= 500:
            is_said = retry_after.isascii() and retry_after.isdigit()
            after_s = min(int(retry_after[:9]), RETRY_AFTER_S_MAX) if is_said else None
            raise RetryLater(after_s, reason=f"answered {status}")
        raise Park(f"answered {status}: {shown[:SHOWN_BYTES].decode(errors='replace')}")

    def _count(self, status: str) -> None:
        self._metrics.pushes.labels(self._config.subscription, status).inc()


async def _check_public(url: str) -> None:
    parts = urlsplit(url)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            parts.hostname, parts.port or 443, type=socket.SOCK_STREAM
        )
    except OSError as fault:
        raise ConfigError(f"push.url {url}: {fault.strerror or fault}") from fault
    for *_, address in found:
        if not ipaddress.ip_address(str(address[0])).is_global:
            raise ConfigError(
                f"push.url {url}: {address[0]} is of a private network; private = true allows it"
            )
