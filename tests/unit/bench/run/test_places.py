from __future__ import annotations

from bench.run.places import places
from bench.run.profile import Profile


def test_every_topic_has_every_subscription() -> None:
    values = {
        "name": "x",
        "load": {"schedule": {"kind": "constant", "rate_per_s": 1}, "consumers": 4},
        "messages": {"topics": 2, "subscriptions": 2},
    }
    wanted = [("load0", "sink0"), ("load0", "sink1"), ("load1", "sink0"), ("load1", "sink1")]
    assert places(Profile.from_values(values, "x")) == wanted
