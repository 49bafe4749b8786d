"""The folder of a local cluster: its settings, state, lists and secrets, and the lock on all of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from messagebus.broker import BrokerList
from messagebus.files import write_whole
from messagebus.services.agent import genesis
from ops.errors import LocalFault
from ops.local import files, secrets
from ops.local.layout import HERE, Layout

# What a cluster has in its folder, beside those of its balancers.
FOLDERS = ("nodes", "servers", "run", "secrets", "tls", "consumer_lists", "journal")
LOCK_WITHIN_S = 180.0
POLL_S = 0.05


class Folder:
    """The files of one cluster, which any process may read; changes of all of it hold the lock."""

    def __init__(self, dir: Path) -> None:
        self.dir = dir
        self._lock = dir / "lock"

    @property
    def is_used(self) -> bool:
        """True when a cluster is in the folder, or was begun there."""
        return self._lock.exists() or (self.dir / "cluster.json").exists()

    def known(self) -> Layout | None:
        state = self.dir / "cluster.json"
        return Layout.from_json(self.dir, state.read_text()) if state.exists() else None

    @property
    def layout(self) -> Layout:
        """The addresses and files. Raises LocalFault when there is no cluster in the folder."""
        if layout := self.known():
            return layout
        raise LocalFault(f"no cluster in {self.dir}: `python -m ops local up` makes one")

    def consumer_list(self) -> BrokerList:
        """Return the operators' copy of the consumer list."""
        return BrokerList.parse(self.layout.list_file.read_text())

    def write(self, layout: Layout) -> None:
        """Write all files that the parts read. State and secrets are kept, the rest is written anew."""
        known = self.known()
        secrets.ensure(layout.secrets_dir)
        if layout.tls:
            files.write_certificates(layout)
        fronts = (front.dir for front in layout.fronts)
        for folder in (*fronts, layout.run_dir, layout.list_file.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if layout.root != HERE:
            files.write_haproxy(layout)
        for node in layout.nodes:
            files.write_node(layout, node)
            if known is None:
                genesis(node.agent_dir)
        if known is None or known.offset != layout.offset:
            # A list without a state file is of a first start that was killed: no process has read it.
            is_read = known is not None and layout.list_file.exists()
            _write_lists(layout, self.consumer_list().generation + 1 if is_read else 1)
        self.save(layout)

    def save(self, layout: Layout) -> None:
        write_whole(layout.inventory, files.inventory_toml(layout), mode=0o644)
        write_whole(layout.state_file, layout.to_json(), mode=0o644)

    def wipe(self) -> None:
        """Remove our files; a folder that holds other files is left with them.

        Where no cluster is in it, files of these names are somebody else's, all but the lock.
        """
        if layout := self.known():
            for name in (*FOLDERS, *(front.name for front in layout.fronts)):
                shutil.rmtree(self.dir / name, ignore_errors=True)
            for name in ("inventory.toml", "cluster.json", "ops.lock"):
                (self.dir / name).unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)
        if self.dir.exists() and not any(self.dir.iterdir()):
            self.dir.rmdir()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock while the cluster as a whole changes.

        The end of the process frees it, however it ends.
        """
        # The folder holds messages and hashes of passwords.
        self.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until = time.monotonic() + LOCK_WITHIN_S
            while not _try_lock(fd):
                if time.monotonic() > until:
                    raise LocalFault(f"another command is at work in {self.dir}")
                time.sleep(POLL_S)
            yield
        finally:
            os.close(fd)


def _write_lists(layout: Layout, generation: int) -> None:
    """Write the list of a new cluster, or of one whose ports have moved."""
    text = files.first_list(layout, generation).render()
    for file in (layout.list_file, *(node.list_file for node in layout.nodes)):
        file.write_text(text)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
