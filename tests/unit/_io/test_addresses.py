"""_io.addresses: the addresses of a name, side by side."""

from __future__ import annotations

import asyncio

import pytest

from messagebus._io.addresses import addresses_of, first_answer, is_number
from tests.support.resolver import resolve

AT_ONCE_MS, NEVER_MS = 0, 600_000


class Hosts:
    """Addresses that answer, fail or stay silent as their names say; `asked` and `dropped` keep the order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.dropped: list[str] = []
        self.cancelled: list[str] = []

    async def ask(self, address: str) -> str:
        self.asked.append(address)
        if address.startswith("silent"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(address)
                if address == "silent, late":
                    return address
                raise
        if address.startswith("fails"):
            raise ConnectionRefusedError(address)
        return address

    async def drop(self, answer: str) -> None:
        self.dropped.append(answer)

    async def first(self, *addresses: str, next_after_ms: int) -> str:
        return await first_answer(
            addresses,
            self.ask,
            next_after_ms=next_after_ms,
            drop=self.drop,
            ends_all=lambda fault: str(fault).endswith("for all"),
        )


async def test_a_silent_address_does_not_hold_up_the_next_one() -> None:
    hosts = Hosts()
    assert await hosts.first("silent", "good", "other", next_after_ms=AT_ONCE_MS) == "good"
    assert hosts.cancelled == ["silent"]


async def test_an_address_that_fails_is_followed_by_the_next_one_at_once() -> None:
    hosts = Hosts()
    assert await hosts.first("fails", "good", "other", next_after_ms=NEVER_MS) == "good"
    assert hosts.asked == ["fails", "good"]


async def test_the_last_address_has_all_the_time_there_is() -> None:
    hosts = Hosts()
    asking = asyncio.ensure_future(hosts.first("silent", "silent too", next_after_ms=AT_ONCE_MS))
    done, _ = await asyncio.wait([asking], timeout=0.05)
    assert (hosts.asked, done) == (["silent", "silent too"], set())
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert sorted(hosts.cancelled) == ["silent", "silent too"], "nothing is left running"


async def test_an_answer_that_comes_too_late_is_closed() -> None:
    hosts = Hosts()
    assert await hosts.first("silent, late", "good", next_after_ms=AT_ONCE_MS) == "good"
    assert hosts.dropped == ["silent, late"]


async def test_without_any_answer_the_faults_of_all_are_told() -> None:
    with pytest.raises(ExceptionGroup) as told:
        await Hosts().first("fails 1", "fails 2", next_after_ms=NEVER_MS)
    assert [str(each) for each in told.value.exceptions] == ["fails 1", "fails 2"]


async def test_a_fault_that_ends_all_is_the_last_word() -> None:
    hosts = Hosts()
    with pytest.raises(ConnectionRefusedError, match="for all"):
        await hosts.first("silent", "fails for all", "good", next_after_ms=AT_ONCE_MS)
    assert (hosts.asked, hosts.cancelled) == (["silent", "fails for all"], ["silent"])


async def test_families_take_turns_and_nothing_comes_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ["2001:db8::1", "2001:db8::2", "192.0.2.1", "2001:db8::1"]
    resolve(monkeypatch, {"lb.example": found})
    assert await addresses_of("lb.example", 5672) == ["2001:db8::1", "192.0.2.1", "2001:db8::2"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%eth0"])
def test_a_number_needs_no_resolver(host: str) -> None:
    assert is_number(host)
    assert not is_number("lb.example")
