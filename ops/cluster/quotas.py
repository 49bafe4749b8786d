"""Quotas of subscriptions and queues as policies of RabbitMQ. Pure.

A full queue refuses publishes, since its overflow, an argument, is reject-publish: no policy makes it drop
anything, nor does a quota that is smaller than what is there. Each broker has its share; the whole is in the
policy's name, so that the shares can be computed anew from any broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from messagebus.destination import Subscription, Topic
from messagebus.errors import NameInvalid
from messagebus.terminal import plural
from messagebus.topology import parse_wanted

PREFIX = "mb.quota "
# Of a queue's policies only that of the highest priority counts; that of `ops provision` has 0.
PRIORITY = 10
_NAME = re.compile(rf"{PREFIX}(\S+)(?: messages=(\d{{1,13}}))?(?: mb=(\d{{1,10}}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The quota of one source, ``orders/billing`` or ``queue:jobs``, over all brokers.

    messages, megabytes: None for no bound. Bytes are those of bodies, as RabbitMQ counts them.
    """

    source: str
    messages: int | None = None
    megabytes: int | None = None

    @classmethod
    def read(cls, name: str) -> Quota | None:
        """Read the name of a policy; None when it is no quota."""
        if (found := _NAME.fullmatch(name)) is None:
            return None
        messages, megabytes = (None if each is None else int(each) for each in found.groups()[1:])
        return cls(source=found[1], messages=messages, megabytes=megabytes)

    @property
    def name(self) -> str:
        """The name of its policy."""
        some = f" messages={self.messages}" if self.messages is not None else ""
        return f"{PREFIX}{self.source}{some}" + (
            f" mb={self.megabytes}" if self.megabytes is not None else ""
        )

    def pattern(self, partitions: int) -> str:
        """Return the pattern of its queues. partitions: of its topic, if it has queues for segments."""
        source = parse_wanted(self.source)
        if partitions and isinstance(source, Subscription):
            return f"^{re.escape(source.segment_queue(''))}"
        assert not isinstance(source, Topic)
        return f"^{re.escape(source.amqp_queue)}$"

    def policy(self, *, queues: int, partitions: int, bound: int | None) -> dict[str, Any]:
        """Return its policy as the management API wants it.

        queues: number of its queues, over all brokers. bound: bytes that the policy of `ops provision` allows
        each: a queue has one policy, and this one replaces it.
        """
        shares = {}
        if self.messages is not None:
            shares["max-length"] = -(-self.messages // queues)
        own = None if self.megabytes is None else -(-self.megabytes * 1_000_000 // queues)
        if (
            least := min((each for each in (own, bound) if each is not None), default=None)
        ) is not None:
            shares["max-length-bytes"] = least
        return {
            "pattern": self.pattern(partitions),
            "apply-to": "queues",
            "priority": PRIORITY,
            "definition": shares,
        }

    def __str__(self) -> str:
        bounds = [
            *([plural(self.messages, "message")] if self.messages is not None else ()),
            *([f"{self.megabytes} MB"] if self.megabytes is not None else ()),
        ]
        return f"{self.source}: {', '.join(bounds)}"


def is_quota(policy: Mapping[str, Any]) -> bool:
    """Return whether a policy is a quota, and no more: of its own queues, and without another key."""
    quota = Quota.read(str(policy["name"]))
    if quota is None:
        return False
    try:
        patterns = {quota.pattern(partitions) for partitions in (0, 1)}
    except (NameInvalid, AssertionError):
        return False
    keys = set(policy.get("definition") or {})
    return policy.get("pattern") in patterns and keys <= {"max-length", "max-length-bytes"}
