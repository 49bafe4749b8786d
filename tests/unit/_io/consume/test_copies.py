"""Copies of deliveries: the one link that they share."""

from __future__ import annotations

from typing import Any, cast

from messagebus._io.consume.copies import Copies, Original, Stored
from messagebus._io.publish.driver import PublishDriver
from messagebus.destination import Queue
from messagebus.stats import Durability, Outcome, Published


class FakeDriver:
    """Driver that stores everything."""

    def __init__(self) -> None:
        self.memory, self.starts, self.stops = self, 0, 0
        self.ids: list[str] = []

    def start(self) -> None:
        self.starts += 1

    async def stop(self, _timeout_s: float) -> None:
        self.stops += 1

    def submit_encoded(
        self, _target: Any, _body: bytes, message_id: str, _properties: bytes, _ms: int, done: Any
    ) -> None:
        assert self.starts == 1
        self.ids.append(message_id)
        done.set_result(Published(message_id, Outcome.CONFIRMED, Durability.FSYNC, "mb1:5672"))


async def test_a_consumer_without_a_copy_dials_no_publishing_link_and_one_with_many_dials_one() -> (
    None
):
    driver = FakeDriver()
    copies = Copies(cast(PublishDriver, driver), Queue("jobs"))
    await copies.stop()
    assert (driver.starts, driver.stops) == (0, 0)
    original = Original(properties=b"\0\0", body=b"x", entry=False, stamp_ms=0)
    for _ in range(3):
        assert await copies.again(original, {}, lambda: True) is Stored.STORED
    await copies.stop()
    assert (driver.starts, driver.stops) == (1, 1)
    assert len(set(driver.ids)) == 3, "each has an id of its own where the original has none"
