"""The commands of docs/guides/gateway.md: its files, its gateway and curl, on real brokers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.processes import free_port
from messagebus import BusConfig, PublisherConfig, Secret, Subscription, Topic
from messagebus.admin import delete_subscriptions
from messagebus.services.gateway.clients import RealBus
from messagebus.services.gateway.config import GatewayConfig
from messagebus.services.gateway.people import read_tokens
from ops.local.cluster import LocalCluster
from tests.support.documents import ROOT, Block, blocks_of, files_of
from tests.support.eventually import eventually

PAGE = ROOT / "docs" / "guides" / "gateway.md"


def blocks(language: str) -> list[Block]:
    return [each for each in blocks_of(PAGE) if each.language == language]


def inline(begin: str) -> str:
    """Return the code that the text holds between back quotes."""
    found = re.search(rf"`({re.escape(begin)}[^`]+)`", PAGE.read_text())
    assert found is not None
    return found[1]


@pytest.fixture
def shell(cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A newcomer's shell: the page's files as its text says, and its gateway, on a real cluster."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(command: str, **more: str) -> str:
        argv = ["sh", "-euc", command]
        done = subprocess.run(
            argv, cwd=tmp_path, env=env | more, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    client = cluster.client_env()
    address, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
    said = {
        "listen": address,
        "admin": admin,
        "broker": client["MESSAGEBUS_BROKER"],
        "list_urls": [client["MESSAGEBUS_LIST_URL"]],
        "user": client["MESSAGEBUS_USER"],
        "password_file": client["MESSAGEBUS_PASSWORD_FILE"],
    }
    for name, text in files_of(PAGE).items():
        for key, value in said.items():
            text = re.sub(f"(?m)^{key} = .*", f"{key} = {json.dumps(value)}", text)
        (tmp_path / name).write_text(text)
    env["TOKEN"] = run(f"{inline('TOKEN=')}; echo $TOKEN").strip()
    digest = run(inline("printf")).split()[0]
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(re.sub('sha256 = ".*"', f'sha256 = "{digest}"', tokens.read_text()))
    env["GATEWAY"] = f"http://{address}"
    argv = blocks("sh")[0].text.split()
    with (tmp_path / "log").open("wb") as log:
        gateway = subprocess.Popen(argv, cwd=tmp_path, env=env, stderr=log)
    try:
        eventually(lambda: "ready" in run(f"curl -sS {admin}/readyz || true"), within_s=60)
        yield run
    finally:
        gateway.terminate()
        assert gateway.wait(90) == 0, (tmp_path / "log").read_text()
        token = Secret(cluster.layout.secret("token").read_text().strip())
        delete_subscriptions(BusConfig.from_env(client), ["orders/billing"], token=token)


def test_curl_alone_declares_publishes_pulls_and_acks(
    shell: Callable[..., str], cluster: LocalCluster
) -> None:
    curl = blocks("sh")[1].text.replace("\\\n", " ").strip().splitlines()
    declare, publish, pull, ack = curl
    assert json.loads(shell(declare))["missing"] == {}
    assert json.loads(shell(publish))["outcome"] == "confirmed"
    (found,) = json.loads(shell(pull))["deliveries"]
    assert (found["id"], json.loads(found["body"])) == ("order-17", {"order": 17})
    assert found["redelivered"] is False
    assert json.loads(shell(ack, LEASE=found["lease"]))["done"] == 1
    none = json.loads(shell(pull.replace('"wait_s": 20', '"wait_s": 1')))
    assert none["deliveries"] == []
    bus = RealBus(BusConfig.from_env(cluster.client_env()), PublisherConfig())
    for name, is_there in (("billing", True), ("biling", False)):
        assert asyncio.run(bus.exists(Subscription(Topic("orders"), name))) == is_there


def test_the_examples_of_settings_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    secret = Path("shop.password")
    secret.touch(mode=0o600)
    secret.write_text("a password")
    tokens, first, push, _, peers = (each.text for each in blocks("toml"))
    for text in (first, push, peers):
        path = tmp_path / "gateway.toml"
        path.write_text(text)
        assert GatewayConfig.from_file(path).listen == "127.0.0.1:8080"
    (tmp_path / "tokens.toml").write_text(tokens)
    assert len(read_tokens(tmp_path / "tokens.toml")) == 1
