"""The list as a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from messagebus_agent import consumer_list as clients
from messagebus_agent.consumer_list import EXPIRY_MS, LEFT_MS, Client, Clients, ListFile


def text(generation: int, *hosts: str, cluster: str = "c") -> str:
    lines = "".join(f"{host}:5672\n" for host in hosts or ("a",))
    return f"# cluster: {cluster}\n# generation: {generation}\n{lines}"


def put(path: Path, content: str) -> None:
    """Replace the file as editors do: another file under the same name."""
    new = path.with_name("new")
    new.write_text(content)
    new.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "list"


def test_a_file_is_read_once_until_it_changes(path: Path) -> None:
    lists = ListFile(path)
    put(path, text(1))
    assert lists.look()
    assert not lists.look()
    put(path, text(2, "a", "b"))
    assert lists.look()
    assert lists.current is not None
    assert lists.current.generation == 2
    assert lists.text == text(2, "a", "b")
    assert lists.etag == '"2"'


def test_a_change_in_place_is_seen(path: Path) -> None:
    lists = ListFile(path)
    path.write_text(text(1))
    lists.look()
    path.write_text(text(2))
    os.utime(path, ns=(1, 1))
    assert lists.look()


@pytest.mark.parametrize(
    "bad",
    ["", "\n", "<html>\n", "a:0\n", text(4), text(9, cluster="other"), "a:1\na:1\n", "\xff" * 9],
)
def test_a_bad_file_changes_nothing_and_is_counted_once(path: Path, bad: str) -> None:
    lists = ListFile(path)
    put(path, text(5, "a", "b"))
    lists.look()
    before = lists.current
    put(path, bad)
    assert not lists.look()
    assert not lists.look()
    assert lists.current == before
    assert lists.text == text(5, "a", "b")
    assert lists.faults == 1
    assert lists.fault


def test_a_missing_file_is_a_fault_until_it_is_there(path: Path) -> None:
    lists = ListFile(path)
    assert not lists.look()
    assert not lists.look()
    assert (lists.current, lists.faults) == (None, 1)
    put(path, text(1))
    assert lists.look()
    assert lists.fault == ""


def test_a_good_file_after_a_bad_one_is_taken(path: Path) -> None:
    lists = ListFile(path)
    put(path, text(1))
    lists.look()
    put(path, "bad line\n")
    lists.look()
    put(path, text(2))
    assert lists.look()
    assert lists.fault == ""


def test_a_file_without_a_generation_has_a_digest_for_its_etag(path: Path) -> None:
    lists = ListFile(path)
    put(path, "a:5672\n")
    lists.look()
    first = lists.etag
    put(path, "a:5672\nb:5672\n")
    lists.look()
    assert first.startswith('"0-')
    assert lists.etag != first


async def test_whoever_waits_when_all_waits_are_ended_hears_that_nothing_is_newer(
    path: Path,
) -> None:
    lists = ListFile(path)
    put(path, text(1))
    lists.look()
    waiting = asyncio.ensure_future(lists.newer_than(1))
    await asyncio.sleep(0)
    lists.end()
    assert not await waiting
    assert not await lists.newer_than(1)
    assert await lists.newer_than(0)


async def test_whoever_waits_hears_of_a_newer_generation(path: Path) -> None:
    lists = ListFile(path)
    put(path, text(1))
    lists.look()
    await lists.newer_than(0)
    waiting = asyncio.ensure_future(lists.newer_than(1))
    await asyncio.sleep(0)
    lists.wake()
    await asyncio.sleep(0)
    assert not waiting.done()
    put(path, text(2))
    lists.look()
    await waiting


def test_the_last_word_of_each_client_counts() -> None:
    seen = Clients()
    seen.seen("a", "orders/x", 3, 100)
    seen.seen("b", "orders/x", 3, 200)
    seen.seen("a", "orders/x", 4, 300)
    assert seen.living(300) == [
        Client(id="b", subscription="orders/x", applied=3, age_ms=100),
        Client(id="a", subscription="orders/x", applied=4, age_ms=0),
    ]


def test_one_client_may_have_several_subscriptions() -> None:
    seen = Clients()
    seen.seen("a", "orders/x", 3, 0)
    seen.seen("a", "orders/y", 4, 0)
    assert len(seen.living(0)) == 2


def test_whoever_is_silent_is_forgotten() -> None:
    seen = Clients()
    seen.seen("a", "", 1, 0)
    seen.seen("b", "", 1, 1)
    assert len(seen.living(EXPIRY_MS)) == 2
    assert [client.id for client in seen.living(EXPIRY_MS + 1)] == ["b"]


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 2)
    seen = Clients()
    for number, name in enumerate("abc"):
        seen.seen(name, "", 1, number)
    assert [client.id for client in seen.living(3)] == ["b", "c"]
    seen.seen("x" * 1000, "y" * 1000, 1, 3)
    assert (
        max(len(client.id + client.subscription) for client in seen.living(3))
        == 2 * clients.TEXT_MAX
    )


def test_who_hung_up_is_forgotten_soon_unless_he_asks_again() -> None:
    seen = Clients()
    for name in ("stays", "ends", "moves"):
        seen.seen(name, "a/b", 1, 100)
    for name in ("ends", "moves", "unknown"):
        seen.left(name, "a/b", 1_000)
    assert len(seen.living(1_000 + LEFT_MS)) == 3
    seen.seen("moves", "a/b", 2, 2_000)
    assert {each.id for each in seen.living(1_001 + LEFT_MS)} == {"stays", "moves"}
    assert [each.id for each in seen.living(101 + EXPIRY_MS)] == ["moves"]


def test_who_hung_up_is_named_until_no_agent_remembers_him() -> None:
    seen = Clients()
    for name in ("stays", "ends", "moves"):
        seen.seen(name, "a/b", 1, 100)
    for name in ("ends", "moves", "unknown"):
        seen.left(name, "a/b", 1_000)
    seen.seen("moves", "a/b", 2, 2_000)
    assert seen.gone(1_000 + LEFT_MS) == []
    later = seen.gone(2_000 + LEFT_MS)
    assert [(each.id, each.subscription, each.age_ms) for each in later] == [
        ("ends", "a/b", 1_000 + LEFT_MS)
    ]
    assert len(seen.gone(1_000 + EXPIRY_MS)) == 1
    assert seen.gone(1_001 + EXPIRY_MS) == []
