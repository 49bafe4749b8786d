"""Check of a destination that exists with other options than a publisher wants."""

from __future__ import annotations

import pytest

from messagebus import BusConfig, Publisher, Queue, Refused, Topic

DEADLINE_S = 30.0


def costs_one_destination_and_not_the_link(
    bus: BusConfig, kept: Topic, refused: Queue, *, told: str
) -> None:
    """Check that the refused one costs no link. told: pattern of its refusal."""
    with Publisher(bus) as publisher:
        publisher.send_safe(kept, b"before", timeout_s=DEADLINE_S)
        dials = publisher.stats().dials
        with pytest.raises(Refused, match=told):
            publisher.send_safe(refused, b"no", timeout_s=DEADLINE_S)
        publisher.send_safe(kept, b"after", timeout_s=DEADLINE_S)
        assert publisher.stats().dials == dials
