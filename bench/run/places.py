"""The names of a run's topics and subscriptions, the same in every system."""

from __future__ import annotations

from bench.run.profile import Profile

__all__ = ["places", "topic_of"]


def topic_of(publisher: int, topics: int) -> str:
    """To which of so many topics a publisher sends."""
    return _topic(publisher % topics)


def _topic(number: int) -> str:
    return f"load{number}"


def places(profile: Profile) -> list[tuple[str, str]]:
    """(topic, subscription), all of a run."""
    messages = profile.messages
    return [
        (_topic(topic), f"sink{subscription}")
        for topic in range(messages.topics)
        for subscription in range(messages.subscriptions)
    ]
