"""Webhooks: each message as a POST, signed by Standard Webhooks, retried by our policy; `messagebus to-http`.

2xx acks. 408, 425, 429, 5xx and no answer lead to another run, after `Retry-After` where it is said. 410
ends it. Everything else, redirects too, parks the message with the answer's status and text. The gateway's
pushes are the same.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email.utils
import fnmatch
import hashlib
import hmac
import ipaddress
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import click
import httpx

from messagebus import __version__
from messagebus.admin import directory
from messagebus.aio import AsyncConsumer
from messagebus.bodies import BINARY
from messagebus.broker import is_http
from messagebus.commands.exits import Exit
from messagebus.commands.options import (
    NumberRange,
    bus_settings,
    durability_option,
    log_option,
    log_to_stderr,
    subscription_option,
    topic_and_subscription,
)
from messagebus.config import ConsumerConfig
from messagebus.destination import parse_destination
from messagebus.envelope import delivered, write_envelope
from messagebus.errors import ConfigError, NotReady, reason_of
from messagebus.handling import DELAY_S_MAX, Park, RetryLater, RetryPolicy
from messagebus.message import Delivery
from messagebus.stats import Durability
from messagebus.terminal import say

SECRET_PREFIX = "whsec_"
AGAIN = frozenset({408, 425, 429})
GONE = 410
# Of an answer: read so that its connection can be used again; kept with a parked message.
ANSWER_BYTES_MAX, KEPT_BYTES_MAX = 64 * 1024, 1024
ADDRESS_S, TIMEOUT_S = 60.0, 10.0
AGENT = f"messagebus/{__version__}"
GRACE_S = 20.0
# IPv6 addresses of hosts of the Internet; all other ranges are of one site, for translation, or unassigned.
UNICAST = ipaddress.IPv6Network("2000::/3")
# Ranges that some releases of Python take for the Internet's: tunnels to IPv4 addresses, which may be inside,
# documentation (RFC 9637), protocols (RFC 6890), the relays of 6to4.
NOT_PUBLIC: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = (
    *map(ipaddress.IPv6Network, ("2002::/16", "2001::/32", "3fff::/20")),
    *map(ipaddress.IPv4Network, ("192.0.0.0/24", "192.88.99.0/24")),
)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Form = Callable[[Delivery], tuple[bytes, str]]
"""Makes the body of a request, and its content type."""


class Refused(Exception):
    """Raised for an address that must not be asked; the text says which."""


class Target:
    """The receiver. allow: shell patterns of hosts that may be anywhere, on this host too.

    timeout_s: for connecting, and for each part of the answer. A whole request ends within three times that.
    """

    def __init__(self, url: str, allow: Sequence[str] = (), timeout_s: float = TIMEOUT_S) -> None:
        """Raises ConfigError."""
        try:
            self.url = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as fault:
            raise ConfigError(f"URL: {fault}") from fault
        if not is_http(url) or self.url.userinfo:
            raise ConfigError("URL: http:// or https://, a host, and no login in it")
        self._anywhere = any(fnmatch.fnmatchcase(self.url.host, each) for each in allow)
        self.timeout_s = timeout_s
        self._checked, self._until_s = [self.url], 0.0
        self._headers = {"Host": self.url.netloc.decode(), "Accept": "*/*", "User-Agent": AGENT}
        timeouts = httpx.Timeout(timeout_s).as_dict()
        self._extensions = {"timeout": timeouts, "sni_hostname": self.url.raw_host.decode()}

    @property
    def addresses(self) -> int:
        """The number of addresses that the name has."""
        return len(self._checked)

    def skip(self, address: httpx.URL) -> None:
        """Ask another address first from now on: this one takes no connection."""
        if self._checked[0] == address:
            self._checked = [*self._checked[1:], address]

    def forget(self) -> None:
        """Resolve the name again for the next request."""
        self._until_s = 0.0

    async def request(self, headers: dict[str, str], body: bytes) -> httpx.Request:
        """Return a request to an address that was checked, so that the name cannot change in between.

        Raises Refused, OSError.
        """
        if time.monotonic() >= self._until_s:
            self._checked = [self.url.copy_with(host=each) for each in await self._resolved()]
            self._until_s = time.monotonic() + ADDRESS_S
        return httpx.Request(
            "POST",
            self._checked[0],
            headers={**self._headers, **headers},
            content=body,
            extensions=self._extensions,
        )

    async def _resolved(self) -> list[str]:
        port = self.url.port or (443 if self.url.scheme == "https" else 80)
        host = self.url.raw_host.decode().strip("[]")
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
        addresses = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        for each in addresses:
            if not (self._anywhere or is_public(each)):
                at = "" if host == str(each) else f" at {each}, which is"
                raise Refused(f"{host} is{at} not public")
        return [str(each) for each in addresses]


def is_public(address: Address) -> bool:
    """Return whether an address is one of the Internet's, not of this host, network or provider."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address not in UNICAST:
            return False
    if any(address in each for each in NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def read_secrets(path: str | Path) -> list[bytes]:
    """Read the keys of signatures, one a line, so that they can rotate. Raises ConfigError."""
    keys = []
    try:
        for number, line in enumerate(Path(path).read_text().split(), start=1):
            try:
                keys.append(base64.b64decode(line.removeprefix(SECRET_PREFIX), validate=True))
            except ValueError:  # also for letters that are not ASCII
                raise ConfigError(f"{path}: line {number}: whsec_ and base64 wanted") from None
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}") from fault
    except UnicodeDecodeError:  # which would show a byte
        raise ConfigError(f"{path}: not UTF-8") from None
    if not keys or not all(keys):
        raise ConfigError(f"{path}: empty")
    return keys


def signed(keys: Sequence[bytes], message_id: str, stamp_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of a request, signed with every key (Standard Webhooks 1.0)."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(stamp_s)}
    content = f"{message_id}.{stamp_s}.".encode() + body
    marks = [base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys]
    if marks:
        headers["webhook-signature"] = " ".join(f"v1,{mark}" for mark in marks)
    return headers


def retry_after_s(text: str, now_s: float) -> float | None:
    """Read `Retry-After`, seconds or a date; None where it says nothing that can be read."""
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), DELAY_S_MAX)
    try:
        return min(
            max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now_s), DELAY_S_MAX
        )
    except (ValueError, TypeError, OverflowError):
        return None


def as_body(delivery: Delivery) -> tuple[bytes, str]:
    """Return the message's body as it is."""
    return delivery.message.body, delivery.message.content_type


def as_envelope(delivery: Delivery) -> tuple[bytes, str]:
    """Return the delivery's envelope."""
    return write_envelope(delivered(delivery)), "application/json"


class Posting:
    """The handler: one POST a delivery. gone: set when the receiver answers 410.

    form: makes bodies. on_answer: gets each status, "none" for no answer.
    transports: one for each delivery under way, with a connection of its own each. httpcore 1.0 looks through
    all connections of a pool for each request: 2.0 ms of CPU with 32 in one. Clients of httpx around them
    (redirects, cookies, proxies: none is wanted here) make it 0.6 ms instead of 0.3.
    """

    def __init__(
        self,
        transports: Sequence[httpx.AsyncBaseTransport],
        target: Target,
        keys: Sequence[bytes],
        *,
        form: Form = as_body,
        on_answer: Callable[[str], None] = lambda _status: None,
    ) -> None:
        self._free = list(transports)
        self._target, self._keys, self._form, self._on_answer = target, keys, form, on_answer
        self.gone = asyncio.Event()
        self.posted = 0

    async def __call__(self, delivery: Delivery) -> None:
        """Post it. Raises RetryLater, Park."""
        http = self._free.pop()
        try:
            await self._post(http, delivery)
        finally:
            self._free.append(http)

    async def _post(self, http: httpx.AsyncBaseTransport, delivery: Delivery) -> None:
        headers, body = self._request(delivery)
        try:
            # httpx bounds each read alone: an answer that comes a byte at a time would last for ever.
            async with asyncio.timeout(2 * self._target.timeout_s):
                answer = await self._answered(http, headers, body)
        except (httpx.TransportError, OSError, Refused) as fault:
            self._target.forget()
            self._on_answer("none")
            raise RetryLater(reason=f"no answer: {reason_of(fault)}") from fault
        code, text = answer.status_code, await _beginning(answer, self._target.timeout_s)
        self._on_answer(str(code))
        if 200 <= code < 300:
            self.posted += 1
            return
        if code == GONE:
            self.gone.set()
            await asyncio.Event().wait()  # cancelled, which gives it back
        told = f"HTTP {code}: {text[:KEPT_BYTES_MAX].decode('utf-8', 'replace')}"
        if code in AGAIN or code >= 500:
            after_s = retry_after_s(answer.headers.get("Retry-After", ""), time.time())
            raise RetryLater(after_s, reason=told)
        raise Park(told)

    async def _answered(
        self, http: httpx.AsyncBaseTransport, headers: dict[str, str], body: bytes
    ) -> httpx.Response:
        """Return the answer of the first address that takes a connection. Raises Refused, OSError."""
        tried = 0
        while True:
            request = await self._target.request(headers, body)
            try:
                return await http.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                tried += 1
                if tried >= self._target.addresses:
                    raise
                self._target.skip(request.url)

    def _request(self, delivery: Delivery) -> tuple[dict[str, str], bytes]:
        body, kind = self._form(delivery)
        message_id = delivery.message_id or f"sha256-{hashlib.sha256(body).hexdigest()}"
        headers = signed(self._keys, _fit(message_id), int(time.time()), body)
        headers["content-type"] = _fit(kind or BINARY)
        return headers, body


def _fit(text: str) -> str:
    """Return a text that a header can have: others are escaped as in addresses."""
    return text if text.isascii() and text.isprintable() and text == text.strip() else quote(text)


async def _beginning(answer: httpx.Response, within_s: float) -> bytes:
    """Return the beginning of an answer's text, and end the answer: its status decides, whatever follows."""
    text = b""
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    try:
        async with asyncio.timeout(within_s):
            async for chunk in answer.stream:
                text += chunk
                if len(text) > ANSWER_BYTES_MAX:
                    break
    except (httpx.TransportError, TimeoutError):
        pass
    finally:
        await answer.aclose()
    return text


@contextlib.asynccontextmanager
async def opened(count: int) -> AsyncIterator[list[httpx.AsyncHTTPTransport]]:
    """Open transports of one connection each."""
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    trusted = httpx.create_ssl_context(trust_env=False)
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                httpx.AsyncHTTPTransport(verify=trusted, limits=limits, trust_env=False)
            )
            for _ in range(count)
        ]


@click.command("to-http", short_help="Post each message of TOPIC to a URL and ack it.")
@click.argument("topic")
@click.argument("url")
@subscription_option
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keys of the signature, whsec_..., one a line; without it nothing is signed.",
)
@click.option("--envelope", is_flag=True, help="Post envelopes; without it bodies as they are.")
@click.option(
    "--allow-host",
    "allow",
    metavar="PATTERN",
    multiple=True,
    help="Host that may have an address of this host or network; repeatable.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1_000),
    default=32,
    show_default=True,
    help="Concurrent requests.",
)
@click.option(
    "--attempts-max",
    type=click.IntRange(1, 1_000),
    default=12,
    show_default=True,
    help="Requests for one message before it is parked.",
)
@click.option(
    "--timeout-s",
    type=NumberRange(min=0.1),
    default=TIMEOUT_S,
    show_default=True,
    help="Limit for connecting and for each part of the answer; three times this for the whole answer.",
)
@durability_option
@log_option
def to_http(
    topic: str,
    url: str,
    subscription: str,
    secret_file: Path | None,
    envelope: bool,
    allow: tuple[str, ...],
    concurrency: int,
    attempts_max: int,
    timeout_s: float,
    durability: str,
    form: str,
) -> int:
    """Post each message of TOPIC ("queue:NAME" for a queue) to URL, and ack it when the answer is 2xx.

    Requests are Standard Webhooks: webhook-id is the message's id, webhook-timestamp, webhook-signature. 408,
    425, 429, 5xx and no answer: another run, after 1 s, 2 s, ... 1 h, or what Retry-After says. 410 ends the
    command with code 1. Any other answer parks the message with it; redirects are not followed. Addresses
    that are not public are refused unless --allow-host names the host.

    \b
    Example:
      messagebus to-http orders https://shop.example/hook -s hook --secret-file /etc/shop/whsec
    """
    target = Target(url, allow, timeout_s)
    keys = [] if secret_file is None else read_secrets(secret_file)
    bus, config = bus_settings(), ConsumerConfig.from_env(os.environ)
    config = replace(config, handed_out_max=max(config.handed_out_max, 2 * concurrency))
    topic, subscription = topic_and_subscription(topic, subscription)
    place = replace(parse_destination(topic), durability=Durability(durability))
    consumer = AsyncConsumer(bus, place, subscription=subscription, config=config)
    directory.reach(bus)
    policy = RetryPolicy(attempts_max=attempts_max)
    log_to_stderr(form)

    async def run() -> Exit:
        async with opened(concurrency) as transports:
            posting = Posting(transports, target, keys, form=as_envelope if envelope else as_body)
            try:
                await target.request({}, b"")
            except Refused as fault:
                raise ConfigError(f"{fault}: --allow-host {target.url.host}") from fault
            except OSError as fault:
                raise NotReady(f"{target.url.host}: {fault}") from fault
            await consumer.start(require="one")
            return await _until_stopped(consumer, posting, concurrency, policy)

    return asyncio.run(run())


async def _until_stopped(
    consumer: AsyncConsumer, posting: Posting, concurrency: int, policy: RetryPolicy
) -> Exit:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    running = asyncio.ensure_future(
        consumer.run(posting.__call__, concurrency=concurrency, retry=policy, grace_s=GRACE_S)
    )
    waits = [asyncio.ensure_future(each.wait()) for each in (stopped, posting.gone)]
    try:
        await asyncio.wait([running, *waits], return_when=asyncio.FIRST_COMPLETED)
        if posting.gone.is_set():
            say("messagebus: the receiver answers 410 Gone: ended", err=True)
            return Exit.FAILED
        if running.done():
            running.result()
        return Exit.TERMINATED if stopped.is_set() else Exit.DONE
    finally:
        for each in waits:
            each.cancel()
        if posting.gone.is_set():
            running.cancel()
        await consumer.stop(GRACE_S)
        await asyncio.gather(running, return_exceptions=True)
        say(f"posted {posting.posted}", err=True)
