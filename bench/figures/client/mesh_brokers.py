"""Brokers of a full mesh, in a process of their own: AMQP without RabbitMQ, and one consumer list.

``python -m bench.figures.client.mesh_brokers COUNT SUBSCRIPTION`` prints the address of the list and
serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import resource
import sys

from tests.support.fake_amqp import FakeRabbit, serve
from tests.support.fake_list import FakeList, serve_list

__all__ = ["main"]


def main(count: str, subscription: str) -> None:
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    asyncio.run(_serve(int(count), subscription))


async def _serve(count: int, subscription: str) -> None:
    rabbits = [FakeRabbit() for _ in range(count)]
    async with serve(*rabbits):
        for rabbit in rabbits:
            rabbit.hold(subscription)
        async with serve_list(FakeList(rabbit.name for rabbit in rabbits)) as listing:
            print(listing.url, flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    main(*sys.argv[1:])
