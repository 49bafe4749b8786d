"""Tests of the service without a broker: requests in the process, two brokers in memory."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from messagebus.testing import MemoryBus
from parcels import places, web

EARLY, LATE = "2026-12-24T10:00:00+01:00", "2026-12-24T09:30:00Z"


def scan(depot: str, at: str) -> dict[str, str]:
    return {"id": str(uuid4()), "depot": depot, "at": at}


@pytest.fixture
async def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryBus]:
    """Brokers in memory, the service on them, and a file of its own."""
    monkeypatch.setenv(places.FILE, str(tmp_path / "parcels.sqlite"))
    brokers = MemoryBus(brokers=2)
    web.bus.use(brokers)
    async with web.api.router.lifespan_context(web.api):
        yield brokers
    web.bus.use(None)


@pytest.fixture
async def client(memory: MemoryBus) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=web.api)
    async with httpx.AsyncClient(transport=transport, base_url="http://parcels") as made:
        yield made


async def test_a_scan_is_published_and_its_place_kept(
    memory: MemoryBus, client: httpx.AsyncClient
) -> None:
    sent = scan("vienna", EARLY)
    answer = await client.post("/parcels/p17/scans", json=sent)
    assert (answer.status_code, answer.json()) == (202, {"message_id": f"scan-{sent['id']}"})
    await memory.handled()
    memory.assert_published("scans", count=1, key="p17")
    assert (await client.get("/parcels/p17")).json() == {
        "parcel": "p17",
        "depot": "vienna",
        "at": "2026-12-24T09:00:00.000000+00:00",
    }


async def test_the_place_is_that_of_the_latest_scan_however_they_arrive(
    memory: MemoryBus, client: httpx.AsyncClient
) -> None:
    for depot, at in (("graz", LATE), ("vienna", EARLY)):
        await client.post("/parcels/p17/scans", json=scan(depot, at))
        await memory.handled()
    assert (await client.get("/parcels/p17")).json()["depot"] == "graz"


async def test_a_scan_without_a_confirm_is_sent_again_under_one_id(
    memory: MemoryBus, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = scan("vienna", EARLY)
    memory.stop_brokers()
    with monkeypatch.context() as hasty:
        hasty.setattr(web, "PUBLISH_WITHIN_S", 0.1)
        answer = await client.post("/parcels/p17/scans", json=sent)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    memory.start_brokers()
    assert (await client.post("/parcels/p17/scans", json=sent)).status_code == 202
    await memory.handled()
    assert {each.message_id for each in memory.published("scans")} == {f"scan-{sent['id']}"}


async def test_a_place_that_cannot_be_kept_now_is_kept_later(
    memory: MemoryBus, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as full:
        full.setenv(places.FILE, str(tmp_path))
        await client.post("/parcels/p17/scans", json=scan("vienna", EARLY))
        await memory.handled()
        memory.assert_answered("scans", "places", answer="retry", count=1)
    memory.advance(60)
    await memory.handled()
    assert (await client.get("/parcels/p17")).json()["depot"] == "vienna"


@pytest.mark.parametrize(
    ("parcel", "sent"),
    [
        ("p17", {"depot": "vienna", "at": EARLY}),
        ("p17", scan("vienna", "2026-12-24T10:00:00")),
        ("p 17", scan("vienna", EARLY)),
    ],
    ids=["without an id", "a time without its zone", "no name of a parcel"],
)
async def test_what_is_no_scan_is_refused(
    memory: MemoryBus, client: httpx.AsyncClient, parcel: str, sent: dict[str, str]
) -> None:
    assert (await client.post(f"/parcels/{parcel}/scans", json=sent)).status_code == 422
    assert memory.published("scans") == []


async def test_a_parcel_that_was_never_scanned_is_not_found(client: httpx.AsyncClient) -> None:
    assert (await client.get("/parcels/p18")).status_code == 404
