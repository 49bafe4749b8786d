"""The trail at one agent: who may write and read, its bounds, and that only rows of its own form are kept."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from messagebus.topology import Wanted
from messagebus_agent.web.login import Admission, Judged
from messagebus_agent.web.trail import BODY_BYTES_MAX, BYTES_BURST, FILES, KEPT_S, Trail

ID = "5f0c2a9be1d04773a1b20000000000c4"


@dataclass
class Rig:
    trail: Trail
    folder: Path
    http: httpx.AsyncClient
    now_s: float = 1_800_000_000.0
    refusal: Response | None = None
    readable: Mapping[str, Any] | None = None

    async def add(self, *rows: Any) -> httpx.Response:
        lines = (each if isinstance(each, str) else json.dumps(each) for each in rows)
        return await self.http.post("/trail", content="\n".join(lines))

    async def found(self, id: str) -> list[dict[str, Any]]:
        return list((await self.http.get(f"/trail/{id}")).json()["rows"])


@pytest.fixture(name="rig")
async def make_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async def judge(_request: Request, _wanted: Mapping[str, Wanted]) -> Judged | Response:
        return rig.refusal or Judged(admission=Admission.YES, user="shop")

    async def readable(_request: Request) -> Mapping[str, Any] | Response | None:
        return rig.refusal or rig.readable

    made = Trail(tmp_path / "trail", 1_600_000, clock=lambda: rig.now_s)
    transport = httpx.ASGITransport(Starlette(routes=made.routes(judge, readable)))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
        rig = Rig(made, tmp_path / "trail", http)
        yield rig


def row(id: Any = ID, **more: Any) -> dict[str, Any]:
    return {"message_id": id, "name": "orders/billing", "what": "handled: park", "at_ms": 5, **more}


async def test_rows_are_found_by_their_id_and_its_beginning_in_the_order_of_time(rig: Rig) -> None:
    await rig.add(row(at_ms=9), row("other-id"), row(at_ms=3, error="KeyError: 'x'\n\"y\""))
    for id in (ID, ID[:8]):
        assert [each["at_ms"] for each in await rig.found(id)] == [3, 9]
    assert (await rig.found(ID))[0]["error"] == "KeyError: 'x'\n\"y\""
    assert await rig.found("nobody") == []


async def test_a_text_that_looks_like_a_row_is_no_row(rig: Rig) -> None:
    fake = '{"message_id":"hostile-id","name":"orders/billing"}'
    await rig.add(row(error=fake, what=f"\n{fake}\n"))
    assert await rig.found("hostile-id") == []


@pytest.mark.parametrize(
    "said",
    ["no JSON", "[]", "[" * 100_000, "{}", row(body="secret"), row(at_ms=-1), row(at_ms="1"),
     row(at_ms=True), row(name=None), row(""), row("x" * 256), row(7)],
)  # fmt: skip
async def test_what_is_no_row_is_refused_with_all_that_came_with_it(rig: Rig, said: Any) -> None:
    assert (await rig.add(row(), said)).status_code == 400
    assert await rig.found(ID) == []


async def test_who_may_not_log_in_neither_writes_nor_reads(rig: Rig) -> None:
    await rig.add(row())
    rig.refusal = JSONResponse({"error": "login refused"}, 401)
    assert (await rig.add(row())).status_code == 401
    assert (await rig.http.get(f"/trail/{ID}")).status_code == 401


async def test_a_caller_sees_rows_of_what_it_may_read_alone(rig: Rig) -> None:
    await rig.add(row(), row(name="orders"), row(name="payments"), row(name="payments/fraud"))
    assert len(await rig.found(ID)) == 4
    rig.readable = {"payments/fraud": None}
    assert [each["name"] for each in await rig.found(ID)] == ["payments", "payments/fraud"]


async def test_more_than_the_rate_is_refused_until_time_has_passed(rig: Rig) -> None:
    chunk = [row(error="x" * 290)] * 2_000
    codes = [(await rig.add(*chunk)).status_code for _ in range(BYTES_BURST // 700_000 + 2)]
    assert codes[0] == 200
    assert codes[-1] == 429
    rig.now_s += 10
    assert (await rig.add(row())).status_code == 200
    body = b" " * (BODY_BYTES_MAX + 1)
    assert (await rig.http.post("/trail", content=body)).status_code == 413


async def test_the_files_are_bounded_and_the_oldest_go_first(rig: Rig) -> None:
    for number in range(60):
        rig.now_s += 60
        await rig.add(row(f"first-id-{number:03}"), *[row(error="x" * 290)] * 200)
    sizes = [each.stat().st_size for each in rig.folder.iterdir()]
    assert sum(sizes) < 1_600_000 + 2 * 1_600_000 / FILES
    assert await rig.found("first-id-000") == []
    assert len(await rig.found("first-id-059")) == 1
    rig.now_s += 2 * KEPT_S
    for path in rig.folder.iterdir():
        os.utime(path, (1, 1))
    await rig.add(row("newest-id"))
    assert len(await rig.found("first-id-")) <= 4


async def test_of_many_rows_a_hundred_are_told_and_a_cut_one_hides_no_other(rig: Rig) -> None:
    await rig.add(*[row(at_ms=n) for n in range(300)])
    assert len(await rig.found(ID)) == 100
    (path,) = rig.folder.iterdir()
    path.write_bytes(b'{"message_id":"cut-by-a-kill","name":"ord')
    await rig.add(row("cut-by-a-kill", at_ms=1), row("cut-by-a-kill", at_ms=2))
    assert [each["at_ms"] for each in await rig.found("cut-by-a-kill")] == [2]


async def test_a_disk_that_takes_nothing_is_told_and_harms_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    answer = await rig.add(row())
    assert answer.status_code == 507
    assert "No space left" in answer.text


@pytest.mark.parametrize("id", ["short", "x" * 256])
async def test_what_is_no_id_is_not_looked_for(rig: Rig, id: str) -> None:
    assert (await rig.http.get(f"/trail/{id}")).status_code == 400
