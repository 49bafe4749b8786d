"""Bus in memory: the same clients on brokers that need no server, for applications' tests.

    bus = MemoryBus(brokers=2)
    with bus.consumer("orders", subscription="billing") as consumer, bus.publisher() as publisher:
        publisher.send_safe("orders", b"...")
        delivery = consumer.receive(timeout_s=1)

The clients are `Publisher`, `Consumer` and their asyncio twins themselves, with their drivers; only
the wire is different: nothing is written to disk, nothing gets lost, no network and
no waiting. `advance` makes delays, retries and deadlines pass, and faults come when asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from messagebus.testing.bus import MemoryBus

__all__ = ["MemoryBus"]

if not TYPE_CHECKING:  # pytest's plug-in is in this package, and every test run loads it

    def __getattr__(name: str) -> Any:
        if name != "MemoryBus":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from messagebus.testing.bus import MemoryBus

        return MemoryBus
