"""The names of a run's topics and subscriptions, the same in every system."""

from __future__ import annotations

from bench.run.profile import Profile

__all__ = ["places", "topic_of", "topic_of_publisher"]


def topic_of(number: int) -> str:
    return f"load{number}"


def topic_of_publisher(profile: Profile, number: int) -> str:
    """Publishers have the topics by turns."""
    return topic_of(number % profile.messages.topics)


def places(profile: Profile) -> list[tuple[str, str]]:
    """(topic, subscription), all of a run."""
    messages = profile.messages
    return [
        (topic_of(topic), f"sink{subscription}")
        for topic in range(messages.topics)
        for subscription in range(messages.subscriptions)
    ]
