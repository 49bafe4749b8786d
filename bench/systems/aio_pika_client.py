"""aio-pika: as many coroutines publish as the window allows; its consumers ack each message."""

from __future__ import annotations

import asyncio
import os

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection

from bench.systems.turn import Stopwatch, Task, Turn, message_id, run_on

__all__ = ["run"]


def run(task: Task) -> Turn:
    turns = {"publish": _publish, "consume": _consume}
    return run_on(task.loop, lambda: turns[task.verb](task))


async def _publish(task: Task) -> Turn:
    """Publish with a fixed set of workers, which is cheaper than a task per message."""
    async with await _connected(task) as connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.get_exchange(task.exchange, ensure=False)
        body = os.urandom(task.body_bytes)
        numbers = iter(range(1, 1 << 62))

        async def work(count: int) -> None:
            for _ in range(count):
                message = aio_pika.Message(
                    body,
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    message_id=message_id(next(numbers)),
                )
                # Raises when the message is refused or unroutable.
                await exchange.publish(message, "", mandatory=True)

        async def publish(count: int) -> int:
            share = -(-count // task.window)
            await asyncio.gather(*(work(share) for _ in range(task.window)))
            return share * task.window

        await publish(task.warm_up)
        watch = Stopwatch()
        return watch.turn(await publish(task.messages))


async def _consume(task: Task) -> Turn:
    async with await _connected(task) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=task.window)
        queue = await channel.get_queue(task.queue, ensure=False)
        done: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        goal = task.warm_up + task.messages
        seen: set[str | None] = set()
        watch: list[Stopwatch] = []

        async def on_message(message: AbstractIncomingMessage) -> None:
            seen.add(message.message_id)
            if len(seen) == task.warm_up:
                watch.append(Stopwatch())
            await message.ack()
            if len(seen) == goal and not done.done():
                done.set_result(watch[0].turn(task.messages))

        tag = await queue.consume(on_message)
        turn = await done
        await queue.cancel(tag)
        return turn


async def _connected(task: Task) -> AbstractRobustConnection:
    return await aio_pika.connect_robust(
        host=task.address.host,
        port=task.address.port,
        login=task.user,
        password=task.password,
    )
