"""The commands of docs/gateway.md, by curl, against a gateway on brokers in memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from messagebus.testing import MemoryBus
from messagebus_gateway.config import GatewayConfig
from messagebus_gateway.people import read_tokens
from tests.support.documents import ROOT, Block, blocks_of
from tests.support.gateway import gateway_on

PAGE = ROOT / "docs" / "gateway.md"
TOKEN = "a token"


def blocks(language: str) -> list[Block]:
    return [each for each in blocks_of(PAGE) if each.language == language]


async def shell(text: str, **environ: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        "sh", "-euc", text, env={**os.environ, **environ}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return json.loads(out)


async def test_curl_alone_declares_publishes_pulls_and_acks(tmp_path: Path) -> None:
    _, curl = blocks("sh")
    declare, publish, pull, ack = curl.text.replace("\\\n", " ").strip().splitlines()
    tokens = tmp_path / "tokens.toml"
    text = blocks("toml")[1].text
    digest = tomllib.loads(text)["token"][0]["sha256"]
    tokens.write_text(text.replace(digest, hashlib.sha256(TOKEN.encode()).hexdigest()))
    bus = MemoryBus(brokers=2)
    async with gateway_on(bus, tokens_file=str(tokens)) as served:
        given = {"TOKEN": TOKEN, "GATEWAY": served.gateway.url}
        assert (await shell(declare, **given))["missing"] == {}
        assert (await shell(publish, **given))["id"] == "order-17"
        (found,) = (await shell(pull, **given))["deliveries"]
        assert json.loads(found["body"]) == {"order": 17}
        assert (await shell(ack, LEASE=found["lease"], **given))["done"] == 1
    bus.assert_answered("orders/billing", answer="ack", count=1)


def test_the_examples_of_settings_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    secret = Path("shop.password")
    secret.touch(mode=0o600)
    secret.write_text("a password")
    first, tokens, push, _, peers = (each.text for each in blocks("toml"))
    for text in (first, push, peers):
        path = tmp_path / "gateway.toml"
        path.write_text(text)
        assert GatewayConfig.from_file(path).listen == "127.0.0.1:8080"
    (tmp_path / "tokens.toml").write_text(tokens)
    assert len(read_tokens(tmp_path / "tokens.toml")) == 1
