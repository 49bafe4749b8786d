"""When the creation or deletion of a destination is complete, by what every broker said.

Decides; asks nobody. *Complete* means: no broker can take a publish without having the wanted
queue. A broker is safe when its agent holds the change (`HELD`), when its agent has stored it and
the broker's gate is shut (`LATER`), or when nobody answers and its node is proved dead (`DEAD`: a
broker that boots has no gate until its agent has read a majority). A port that does not answer, or
refuses, proves nothing. And a majority of agents must have stored the change, or it could be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from messagebus.core.register import majority

__all__ = ["Answer", "Completion", "Reply", "completion"]


class Answer(Enum):
    """What is known about one broker after a change was sent to its agent."""

    HELD = "held"
    LATER = "later"
    DEAD = "dead"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One broker's answer. stored: its agent has it on disk, in a map that counts.

    above: it was not taken, and would be with a number above this; 0 for any other answer.
    """

    answer: Answer
    stored: bool = False
    reason: str = ""
    above: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How a change ended, over all its names. missing: broker -> why it stands in the way."""

    complete: bool
    held: tuple[str, ...]
    later: tuple[str, ...]
    missing: Mapping[str, str]


def completion(listed: Iterable[str], replies: Mapping[str, Reply]) -> Completion:
    """Judge the replies of the listed brokers; one without a reply stands in the way."""
    names = sorted(set(listed))
    silent = Reply(answer=Answer.NO, reason="no answer")
    by_name = {name: replies.get(name, silent) for name in names}
    held = tuple(name for name in names if by_name[name].answer is Answer.HELD)
    later = tuple(name for name in names if by_name[name].answer in (Answer.LATER, Answer.DEAD))
    missing = {
        name: by_name[name].reason or "refused it"
        for name in names
        if by_name[name].answer is Answer.NO
    }
    stored = sum(reply.stored for reply in by_name.values())
    if stored < majority(len(names)):
        missing |= {
            name: f"not stored by its agent, and only {stored} of {len(names)} agents stored it"
            for name in names
            if not by_name[name].stored and name not in missing
        }
    return Completion(complete=not missing and bool(names), held=held, later=later, missing=missing)
