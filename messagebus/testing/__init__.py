"""The bus without the bus: the same clients on brokers that live in memory, for applications' tests.

    bus = MemoryBus(brokers=2)
    with bus.consumer("orders", subscription="billing") as consumer, bus.publisher() as publisher:
        publisher.send_safe("orders", b"...")
        delivery = consumer.receive(timeout_s=1)

The clients are `Publisher`, `Consumer` and their asyncio twins themselves, and so are the drivers
behind them; only the wire is another: nothing is written to disk, nothing gets lost, no network and
no waiting. Delays, retries and deadlines pass when `advance` says so, and faults come when asked for.
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
