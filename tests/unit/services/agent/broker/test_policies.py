"""Policies that have a broker lose messages of the library's queues, among all policies."""

from __future__ import annotations

from typing import Any

import pytest

from messagebus import Durability
from messagebus.destination import Delay, Queue, Stream, Subscription, Topic
from messagebus.services.agent.broker.policies import losing
from messagebus.topology import Wanted, declarations

JOBS, EXPIRING = Queue("jobs"), Subscription(Topic("t"), "live", expires_s=60)


def listed(wanted: Wanted, policy: dict[str, Any], **names: str) -> list[dict[str, Any]]:
    """Return the queues of an entry as the management API lists them under a policy."""
    return [
        {
            "name": queue.name,
            "arguments": dict(queue.arguments),
            "effective_policy_definition": policy,
            **(names or {"policy": "all"}),
        }
        for queue in declarations(wanted).queues
    ]


@pytest.mark.parametrize(
    ("wanted", "policy", "told"),
    [
        (JOBS, {"message-ttl": 3000}, "message-ttl: mb.park/jobs, mb.queue/jobs"),
        (JOBS, {"expires": 1}, "expires"),
        (Delay(1_000), {"message-ttl": 1}, "message-ttl: mb.delay/1000"),
        (JOBS, {"delivery-limit": 3}, "delivery-limit"),
        (EXPIRING, {"dead-letter-exchange": "x"}, "dead-letter-exchange: mb.sub/t/live"),
        (Stream("t"), {"max-age": "1h"}, "max-age: mb.stream/t"),
        (Stream("t"), {"max-length-bytes": 1, "overflow": "reject-publish"}, "max-length-bytes"),
    ],
)
def test_a_policy_that_loses_messages_is_named_with_what_it_sets_and_where(
    wanted: Wanted, policy: dict[str, Any], told: str
) -> None:
    assert f"policy 'all' loses messages by {told}" in losing(listed(wanted, policy))


def test_a_queue_that_is_bounded_and_drops_is_named_also_by_an_operator_s_policy() -> None:
    classic = {"name": "mb.queue/c", "arguments": {"x-queue-type": "classic"}}
    bounded = classic | {"effective_policy_definition": {"max-length": 5}, "operator_policy": "ops"}
    assert losing([bounded]) == "policy 'ops' loses messages by max-length: mb.queue/c"


@pytest.mark.parametrize(
    ("wanted", "policy"),
    [
        (JOBS, {}),
        (JOBS, {"max-length-bytes": 1 << 30, "max-length": 5}),  # they refuse, by their arguments
        (Delay(1_000), {"max-length": 5}),
        (Queue("fast", Durability.PAGE_CACHE), {"max-length": 5}),
        (JOBS, {"delivery-limit": 1_000_000_000, "queue-mode": "lazy"}),
    ],
)
def test_a_policy_that_loses_nothing_is_not_named(wanted: Wanted, policy: dict[str, Any]) -> None:
    assert losing(listed(wanted, policy)) == ""


def test_queues_of_others_are_their_own_and_an_empty_object_may_come_as_a_list() -> None:
    assert losing([{"name": "x", "effective_policy_definition": {"message-ttl": 1}}]) == ""
    assert losing([{"name": "mb.x", "arguments": [], "effective_policy_definition": []}]) == ""
    assert losing([{"name": "mb.ready"}]) == ""
