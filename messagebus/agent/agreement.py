"""Whether what is asked for agrees with what the map has, and what a new name is to be made with.

Pure. No subscription may be weaker than its topic, or a confirm would promise more than it keeps: a
subscription that does not say how durable it is takes its topic's level.
"""

from __future__ import annotations

from collections.abc import Mapping

from messagebus.core.register import Entry
from messagebus.destination import Subscription, Topic
from messagebus.topology import Options, Wanted, differences, options_of, with_options

__all__ = ["resolve"]

FSYNC = "fsync"


def resolve(
    entries: Mapping[str, Entry], asked: Mapping[str, Options]
) -> tuple[dict[str, Options], dict[str, str]]:
    """What each name is to live with, and for each that cannot why: both values stand in the text.

    asked: names with what is asked beside them. Raises NameInvalid.
    """
    standing: dict[str, Options] = {e.wanted: dict(e.options) for e in entries.values() if e.alive}
    taken, against = dict[str, Options](), dict[str, str]()
    # Topics before their subscriptions, which take their level.
    for name in sorted(asked, key=lambda name: "/" in name):
        wanted = with_options(name, asked[name])
        options = standing.get(name)
        told = "" if options is None else differences(wanted, options)
        if options is None:
            options = _as_new(wanted, standing)
        told = told or _against_others(wanted, options, standing)
        if told:
            against[name] = told
        else:
            taken[name] = standing[name] = options
    return taken, against


def _as_new(wanted: Wanted, standing: Mapping[str, Options]) -> Options:
    options = options_of(wanted)
    if isinstance(wanted, Subscription) and "durability" not in options:
        topic = _level(standing.get(str(wanted.topic), {}))
        return options if topic == FSYNC else {**options, "durability": topic}
    return options


def _against_others(wanted: Wanted, options: Options, standing: Mapping[str, Options]) -> str:
    level = _level(options)
    if "delivery_limit" in options and level != FSYNC:
        return f"{wanted}: delivery_limit needs durability {FSYNC} and its topic exists {level}"
    match wanted:
        case Subscription(topic=topic):
            above = standing.get(str(topic))
            if above is not None and _level(above) == FSYNC != level:
                return f"{wanted}: durability is wanted {level} and its topic exists {FSYNC}"
        case Topic() if level == FSYNC:
            for name, below in standing.items():
                if name.startswith(f"{wanted}/") and _level(below) != FSYNC:
                    weaker = f"its subscription {name} exists {_level(below)}"
                    return f"{wanted}: durability is wanted {FSYNC} and {weaker}"
        case _:
            pass
    return ""


def _level(options: Options) -> str:
    return str(options.get("durability", FSYNC))
