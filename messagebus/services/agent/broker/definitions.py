"""The definitions of one broker: its queues, exchanges and bindings, as its management API lists them.

Three lists tell in a tenth of a second what thousands of declarations would: whether the broker has all that
the map wants. What differs in anything that the broker itself would compare is not there: it is declared, and
the broker says what it thinks of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from messagebus.topology import BORN, Binding, Declarations, Exchange

ALTERNATE = "alternate-exchange"
# RabbitMQ compares arguments of these names alone; among them all that a queue does.
COMPARED = "x-"
QUEUE_COLUMNS = ("name", "arguments", "durable", "auto_delete", "exclusive", "state")
EXCHANGE_COLUMNS = ("name", "type", "arguments", "durable", "auto_delete", "internal")
BINDING_COLUMNS = ("source", "destination", "destination_type", "routing_key", "arguments")

# States of a queue whose process is not there. Lists have it all the same.
GONE = frozenset({"down", "crashed", "stopped", "terminated"})

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """All that a broker had when it was asked. births: its queues -> their `mb-born`, None for one without.

    queues: those that are durable, shared and alive -> the arguments that the broker compares. exchanges: by
    name; None for one that is no exchange of a map.
    """

    births: Mapping[str, int | None] = field(default_factory=dict)
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    exchanges: Mapping[str, Exchange | None] = field(default_factory=dict)
    bindings: Collection[Binding] = frozenset()

    def has(self, wanted: Declarations) -> bool:
        """Return whether all of this was there, exactly as it is wanted."""
        return (
            all(self.queues.get(each.name) == _compared(each.arguments) for each in wanted.queues)
            and all(self.exchanges.get(each.name) == each for each in wanted.exchanges)
            and all(each in self.bindings for each in wanted.bindings)
        )


def names_of(wanted: Declarations) -> set[str]:
    """Return the names of all queues and exchanges of these declarations, and of what they bind."""
    return (
        {each.name for each in wanted.exchanges}
        | {each.name for each in wanted.queues}
        | {name for each in wanted.bindings for name in (each.exchange, each.queue)}
    )


def read_definitions(
    queues: Collection[Row], exchanges: Iterable[Row], bindings: Iterable[Row]
) -> Definitions:
    """Read the lists of the management API. Raises KeyError, TypeError or AttributeError."""
    return Definitions(
        births={str(each["name"]): born_of(each.get("arguments")) for each in queues},
        queues={
            each["name"]: _compared(each["arguments"] or {}) for each in queues if _is_kept(each)
        },
        exchanges={each["name"]: _exchange(each) for each in exchanges},
        bindings=frozenset(
            Binding(
                exchange=each["source"],
                queue=each["destination"],
                routing_key=each["routing_key"],
                to_exchange=each["destination_type"] == "exchange",
            )
            for each in bindings
            if each["source"] and not each["arguments"]
        ),
    )


def born_of(arguments: Any) -> int | None:
    """Return the number of the entry for which a queue was declared, None where it does not say."""
    born = arguments.get(BORN) if isinstance(arguments, dict) else None
    return born if type(born) is int else None


def _is_kept(queue: Row) -> bool:
    is_shared = not queue["auto_delete"] and not queue.get("exclusive")
    return bool(queue["durable"] and is_shared and queue.get("state") not in GONE)


def _exchange(row: Row) -> Exchange | None:
    arguments = row["arguments"] or {}  # RabbitMQ writes an empty object as []
    if row["auto_delete"] or row["internal"]:
        return None
    alternate = arguments.get(ALTERNATE, "")
    return Exchange(name=row["name"], type=row["type"], durable=row["durable"], alternate=alternate)


def _compared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key.startswith(COMPARED)}
