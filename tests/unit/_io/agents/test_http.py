"""Certificates and names of HTTP clients."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from messagebus._io.agents.http import http_client
from messagebus.config import BusConfig
from messagebus.errors import ConfigError
from ops.local.certificates import issue_missing


def bus(folder: Path) -> BusConfig:
    issue_missing(folder, {"client": ()})
    return BusConfig(
        broker="10.0.0.1:5671",
        tls=True,
        tls_ca_file=str(folder / "ca.pem"),
        tls_cert_file=str(folder / "client.pem"),
        tls_key_file=str(folder / "client.key"),
        tls_server_name="bus.test",
    )


@pytest.mark.parametrize(
    ("url", "name"),
    [("https://10.0.0.1:8081/x", "bus.test"), ("https://10.0.0.2:8081/x", None)],
)
async def test_what_answers_behind_the_balancer_is_for_the_server_name(
    tmp_path: Path, url: str, name: str | None
) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200)

    async with http_client(bus(tmp_path), transport=httpx.MockTransport(answer)) as http:
        await http.get(url)
    assert asked[0].extensions.get("sni_hostname") == name


def test_files_that_have_gone_since_are_told(tmp_path: Path) -> None:
    config = bus(tmp_path)
    (tmp_path / "client.key").unlink()
    with pytest.raises(ConfigError, match="tls_key_file"):
        http_client(config)
