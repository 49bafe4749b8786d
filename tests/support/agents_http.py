"""Agents without sockets: `httpx.get` answered from a table."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from consumer_lists.nodes import Cluster, Node


class AgentsHttp:
    """Agents behind `httpx.get`. answers: ``host:port/path`` -> text, or a status code; all else refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, str | int] = {}
        monkeypatch.setattr(httpx, "get", self._get)

    def _get(self, url: str, **_: object) -> httpx.Response:
        answer = self.answers.get(url.removeprefix("http://"))
        request = httpx.Request("GET", url)
        match answer:
            case None:
                raise httpx.ConnectError("Connection refused", request=request)
            case int():
                return httpx.Response(answer, text="no list\n", request=request)
            case str():
                return httpx.Response(200, text=answer, request=request)


def cluster_of(folder: Path, names: list[str]) -> Cluster:
    """Return a cluster whose agents are ``<name>:8081`` and whose files are below folder."""
    return Cluster(
        name="prod",
        list_file=folder / "prod.txt",
        nodes=tuple(
            Node(
                name=name,
                address=f"{name}:5672",
                agent=f"{name}:8081",
                list_file=folder / name / "list.txt",
            )
            for name in names
        ),
    )
