"""Settings of a gateway, and its pushes: whatever a file holds, they are right or one clear line."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from messagebus import BusConfig, ConfigError, PublisherConfig
from messagebus.services.gateway.config import GatewayConfig, Limits, PushConfig
from messagebus.services.gateway.metrics import Metrics
from messagebus.services.gateway.people import read_tokens
from messagebus.services.gateway.pushing import Push
from messagebus.services.gateway.testing import MemoryGatewayBus
from messagebus.testing import MemoryBus

NEEDED = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "anonymous": "all"}
PUSH: dict[str, Any] = {
    "subscription": "orders/billing",
    "url": "https://shop.example/",
    "secret_file": "/tmp/s",
}
VALUES: list[Any] = [
    *(5, -1, 0, 1.5, math.nan, math.inf, -math.inf, True, 10**30, None),
    *("", "x", "\0", "\ud800", "a\nb", "http://[::1", "http://h:port", f"https://{'a' * 70}.com/"),
    *([], [1], ["x"], [[]], [{}], [None], {}, {"x": 1}, {"a": {"b": 1}}),
]
FIELDS: list[tuple[str, ...]] = [
    *((each.name,) for each in dataclasses.fields(GatewayConfig)),
    *(("limits", each.name) for each in dataclasses.fields(Limits)),
    *(("push", each.name) for each in dataclasses.fields(PushConfig)),
    *(("bus", each.name) for each in dataclasses.fields(BusConfig)),
    *(("publisher", each.name) for each in dataclasses.fields(PublisherConfig)),
]


def settings(place: tuple[str, ...], value: Any) -> Mapping[str, Any]:
    if len(place) == 1:
        return {**NEEDED, place[0]: value}
    table, name = place
    return {**NEEDED, table: [{**PUSH, name: value}] if table == "push" else {name: value}}


@pytest.mark.parametrize("place", FIELDS, ids=".".join)
def test_any_value_of_a_setting_is_taken_or_refused_in_one_line(place: tuple[str, ...]) -> None:
    for value in VALUES:
        try:
            GatewayConfig.from_mapping(settings(place, value))
        except ConfigError as fault:
            told = str(fault)
            assert "\n" not in told, value
            assert place[0] in told or "anonymous: works on a loopback address" in told, value


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((place, math.nan) for place in FIELDS),
        *((place, math.inf) for place in FIELDS),
        (("drain_s",), -1),
        (("grace_s",), 10**9),
        (("origins",), "https://shop.example"),
        (("origins",), ["https://shop.example/"]),
        (("origins",), ["shop.example"]),
        (("origins",), ["https://u:p@shop.example"]),
        (("origins",), ["https://shop.example?x"]),
        (("names",), "bus.example"),
        (("names",), ["http://bus.example"]),
        (("names",), ["bus.example:80"]),
        (("peers",), {"gw2": "ftp://x/"}),
        (("peers",), {"gw": "http://x/"}),
        (("push",), "orders/billing"),
        (("push", "attempts_max"), 0),
        (("push", "timeout_s"), 0),
        (("push", "concurrency"), 0),
        (("push", "url"), "http://[::1"),
        (("push", "format"), "xml"),
        (("bus",), []),
        (("limits",), [{}]),
        (("tokens_file",), "a\0b"),
    ],
)
def test_what_would_never_work_is_refused(place: tuple[str, ...], value: Any) -> None:
    with pytest.raises(ConfigError):
        GatewayConfig.from_mapping(settings(place, value))


def test_what_is_right_is_taken() -> None:
    origins = ["https://shop.example", "http://[::1]:3000", "capacitor://localhost", "null", "*"]
    more = {"origins": origins, "drain_s": 0}
    made = GatewayConfig.from_mapping(
        {**NEEDED, **more, "peers": {"gw2": "https://gw2:8080"}, "push": [PUSH]}
    )
    assert made.origins == tuple(origins)
    assert made.push == (PushConfig(**PUSH),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[token]\nname = "shop"', r"token: tables \[\[token\]\] wanted"),
        ("token = 5", r"token: tables \[\[token\]\] wanted"),
        ('token = ["shop"]', "token 1: a table wanted"),
        ("token = [[]]", "token 1: a table wanted"),
        (f'[[token]]\nname = "a"\nsha256 = "{"0a" * 32}"\nrate_per_s = nan', "rate_per_s"),
        (f'[[token]]\nname = "a"\nsha256 = "{"0a" * 32}"\nrate_per_s = inf', "rate_per_s"),
    ],
)
def test_a_file_of_tokens_that_names_nobody_is_no_file_of_nobody(
    text: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_tokens(path)


# Pushes.
METRICS = cast(Metrics, None)  # counts answers, of which there are none here


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text("whsec_c2VjcmV0\n")
    return str(path)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"subscription": "orders"}, "push.subscription 'orders': TOPIC/NAME or queue:NAME"),
        ({"url": "https://user:pw@shop.example/"}, "no login in it"),
        ({"secret_file": "/no/such"}, "/no/such: No such file"),
    ],
)
def test_a_push_that_cannot_work_is_named(wrong: dict[str, str], told: str, secret: str) -> None:
    config = PushConfig(**cast(Any, PUSH | {"secret_file": secret} | wrong))
    with pytest.raises(ConfigError, match=told) as refused:
        Push(config, MemoryGatewayBus(MemoryBus()), METRICS)
    assert "pw" not in str(refused.value)


async def test_a_receiver_whose_name_is_not_found_now_keeps_no_gateway_from_starting(
    secret: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def nowhere(*_: object, **__: object) -> Any:
        raise OSError("Temporary failure in name resolution")

    bus = MemoryBus()
    bus.declare("orders/billing")
    push = Push(
        PushConfig(**cast(Any, PUSH | {"secret_file": secret})), MemoryGatewayBus(bus), METRICS
    )
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nowhere)
    with caplog.at_level(logging.WARNING, logger="messagebus.gateway"):
        await push.start()
        await push.stop()
    assert "Temporary failure" in caplog.text


async def test_a_push_that_ends_by_itself_says_why(
    secret: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    push = Push(
        PushConfig(**cast(Any, PUSH | {"secret_file": secret, "private": True})),
        MemoryGatewayBus(MemoryBus()),
        METRICS,
    )

    async def fails(*_: object, **__: object) -> int:
        raise ConfigError("refused by every broker")

    monkeypatch.setattr(push._consumer, "run", fails)
    with caplog.at_level(logging.ERROR, logger="messagebus.gateway"):
        await push.start()
        assert push._running is not None
        await asyncio.wait([push._running])
        await push.stop()
    assert "push ends subscription=orders/billing reason='refused by every broker'" in caplog.text
