"""The files of a spool at a power-off: only what was synced is there, and all that was promised is in it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from messagebus import Hooks, Outcome, Published, PublisherConfig, Spool
from messagebus._io.publish.spool import folder as spool_folder
from messagebus._io.publish.spool import keeper, replayer, writer
from messagebus.admin.spool import read_spool
from messagebus.errors import ConfigError
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually

WITHIN_S = 60.0
# Below the folder of the test, which is there; what is made in it is the spool's to sync.
ROOT = Path("var/spool/shop")
Tree = dict[str, "Tree | bytes"]


class Disk:
    """A strict disk: a file has what it had at its last sync, a folder the names of its own last sync."""

    def __init__(self, root: Path) -> None:
        self._root = root.stat().st_ino
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, tuple[int, bool]]] = {self._root: {}}
        self._open: list[int] = []  # so that no inode is used again

    def sync(self, fd: int) -> None:
        self._open.append(os.dup(fd))
        self._files[os.fstat(fd).st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._open.append(fd)
        with os.scandir(fd) as found:
            names = {each.name: (each.inode(), each.is_dir()) for each in found}
        self._folders[os.fstat(fd).st_ino] = names

    def at_power_off(self) -> Tree:
        return self._tree(self._root)

    def _tree(self, folder: int) -> Tree:
        return {
            name: self._tree(inode) if is_folder else self._files.get(inode, b"")
            for name, (inode, is_folder) in self._folders.get(folder, {}).items()
        }

    def close(self) -> None:
        for fd in self._open:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class PowerOff:
    """A moment. spooled: bodies whose publishes had ended so; sent: of these, confirmed by a broker."""

    left: Tree
    spooled: frozenset[bytes]
    sent: frozenset[bytes]


class Sent(Hooks):
    def __init__(self, bodies: dict[str, bytes]) -> None:
        self.bodies, self.confirmed = bodies, set[bytes]()

    def spooled(self, destination: str, published: Published) -> None:
        self.confirmed.add(self.bodies[published.message_id])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.close()


def put(tree: Tree, where: Path) -> None:
    where.mkdir()
    for name, there in tree.items():
        if isinstance(there, bytes):
            (where / name).write_bytes(there)
        else:
            put(there, where / name)


def readable(tree: Tree, where: Path) -> set[bytes]:
    put(tree, where)
    try:
        return {each.message.body for each in read_spool(where / ROOT)}
    except ConfigError:  # there is no such folder
        return set()


@pytest.mark.guarantee("spooled-is-sent-later")
def test_what_was_spooled_and_not_sent_is_on_the_disk_at_any_power_off(
    disk: Disk,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments: list[PowerOff] = []
    futures: dict[bytes, Future[Published]] = {}
    hook = Sent({f"id-{number}": b"%d" % number for number in range(400)})

    def look() -> None:
        ended = {body for body, each in futures.copy().items() if each.done()}
        spooled = {each for each in ended if futures[each].result().outcome is Outcome.SPOOLED}
        sent = frozenset(hook.confirmed.copy())
        moments.append(PowerOff(disk.at_power_off(), frozenset(spooled), sent))

    def watched(call: Callable[..., None]) -> Callable[..., None]:
        def calling(what: object) -> None:
            look()
            call(what)
            look()

        return calling

    monkeypatch.setattr(spool_folder, "sync", watched(disk.sync))
    monkeypatch.setattr(spool_folder, "sync_folder", watched(disk.sync_folder))
    for part in (keeper, writer):
        monkeypatch.setattr(part, "SEGMENT_BYTES", 2_000)
    for part in (keeper, replayer):
        monkeypatch.setattr(part, "CURSOR_CONFIRMS", 7)
    monkeypatch.setattr(keeper, "IDLE_MS", 0)
    bus, chance = MemoryBus(), random.Random(17)
    bus.declare("orders/billing")
    numbers = iter(range(400))
    for _process in range(2):
        bus.stop_brokers()
        with bus.publisher(
            PublisherConfig(deadline_s=60),
            spool=Spool(tmp_path / ROOT, after_s=0),
            hooks=[hook],
        ) as publisher:
            for _ in range(4):
                for number in [next(numbers) for _ in range(chance.randrange(10, 40))]:
                    body = b"%d" % number
                    futures[body] = publisher.submit("orders", body, message_id=f"id-{number}")
                eventually(lambda: all(each.done() for each in futures.values()), within_s=WITHIN_S)
                if chance.random() < 0.7:
                    bus.start_brokers()
                    most = chance.choice([0, 20])
                    eventually(
                        lambda: publisher.stats().spool_messages <= most,  # noqa: B023
                        within_s=WITHIN_S,
                    )
                    bus.stop_brokers()
    bus.close()
    assert len(moments) > 30
    after = tmp_path_factory.mktemp("after")
    for number, moment in enumerate(moments):
        left = readable(moment.left, after / str(number))
        lost = moment.spooled - moment.sent - left
        assert not lost, f"{len(lost)} of {len(moment.spooled)} at moment {number}"
    assert any(moment.sent and moment.spooled - moment.sent for moment in moments)
