"""Links to several distinct brokers at once.

A broker gives its own name in the handshake (`Link.broker`). A target where another broker answers
is refused here: two names for one broker would count one copy twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from messagebus._io.amqp.link import Credentials, Link, dial
from messagebus._io.loop import now_ms
from messagebus.broker import Broker
from messagebus.core.distinct import Distinct
from messagebus.errors import LinkError, LinkLost


@dataclass(frozen=True, slots=True)
class Target:
    """An address to connect to. name: the broker that must answer there."""

    address: Broker
    name: str

    @classmethod
    def named(cls, broker: Broker) -> Target:
        """Return a target where only this broker may answer."""
        return cls(broker, broker.name)


@dataclass(frozen=True, slots=True)
class Dialed:
    """The opened links, to distinct brokers, in the order in which they answered. dials: how many it took."""

    links: tuple[Link, ...]
    dials: int


async def dial_named(broker: Broker, credentials: Credentials, *, timeout_ms: int) -> Link:
    """Dial as `link.dial` does. Raises LinkLost also when another broker answers, or one without a name."""
    link = await _dial_target(Target.named(broker), credentials, timeout_ms=timeout_ms)
    if not link.broker:
        await link.hang_up()
        raise LinkLost(broker.name, "the broker there does not say its name")
    return link


async def _dial_target(target: Target, credentials: Credentials, *, timeout_ms: int) -> Link:
    """Dial as `link.dial` does. Raises LinkLost also when another broker answers."""
    link = await dial(target.address, credentials, timeout_ms=timeout_ms)
    if link.broker and link.broker != target.name:
        await link.hang_up()
        raise LinkLost(target.name, f"{link.broker} answers there")
    return link


async def dial_distinct(
    targets: Sequence[Target], count: int, credentials: Credentials, *, timeout_ms: int
) -> Dialed:
    """Open links to `count` distinct named brokers, the first that answer, each within timeout_ms.

    Raises LinkLost when fewer answered; those links are closed. Ends within
    len(targets) * timeout_ms, because each target is dialled once.
    """
    by_name = {target.name: target for target in targets}
    search = Distinct(list(by_name), count, hedge_ms=timeout_ms // 2)
    tasks: dict[str, asyncio.Task[Link]] = {}
    try:
        await _search(search, by_name, tasks, credentials, timeout_ms)
    except BaseException:  # cancelled: nobody will own the links dialled meanwhile
        await _let_go(tasks.values())
        raise
    return await _conclude(search, tasks, count)


async def _search(
    search: Distinct,
    by_name: Mapping[str, Target],
    tasks: dict[str, asyncio.Task[Link]],
    credentials: Credentials,
    timeout_ms: int,
) -> None:
    while not search.is_done:
        for each in search.tick(now_ms()):
            work = _dial_target(by_name[each.broker], credentials, timeout_ms=timeout_ms)
            tasks[each.broker] = asyncio.create_task(work)
        due_ms = search.next_due_ms(now_ms())
        wait_s = None if due_ms is None else max(0, due_ms - now_ms()) / 1000
        running = [task for task in tasks.values() if not task.done()]
        if running:
            await asyncio.wait(running, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        _tell(search, tasks)


def _tell(search: Distinct, tasks: dict[str, asyncio.Task[Link]]) -> None:
    for broker, task in tasks.items():
        if not task.done() or broker in search.found:
            continue
        if isinstance(task.exception(), LinkError):
            search.failed(broker)
        elif task.exception() is None:
            search.opened(broker)
        else:
            task.result()  # a bug, not a broker: let it out


async def _conclude(search: Distinct, tasks: dict[str, asyncio.Task[Link]], count: int) -> Dialed:
    enough = len(search.found) >= count
    taken = search.found if enough else ()
    await _let_go(task for broker, task in tasks.items() if broker not in taken)
    if not enough:
        raise LinkLost(", ".join(tasks), f"{len(search.found)} of {count} brokers answered")
    links = tuple(tasks[broker].result() for broker in search.found)
    return Dialed(links, search.dials)


async def _let_go(dials: Iterable[asyncio.Task[Link]]) -> None:
    """Cancel dials, and close the links that are open already."""
    left = list(dials)
    for task in left:
        task.cancel()
    for link in await asyncio.gather(*left, return_exceptions=True):
        if isinstance(link, Link):
            await link.close()
