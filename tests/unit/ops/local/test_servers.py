from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ops.local import servers
from ops.local.layout import Server
from tests.support.eventually import eventually


def postgresql(folder: Path) -> Server:
    return Server(
        name="postgresql",
        kind="postgresql",
        host="127.0.0.10",
        port=5432,
        dir=folder,
        password_file=folder / "password",
    )


def test_the_lock_of_a_killed_postgresql_that_nobody_has_reaped_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / "data" / "postmaster.pid"
    lock.parent.mkdir()
    with subprocess.Popen(["/bin/sleep", "60"]) as child:
        lock.write_text(f"{child.pid}\n/data\n")
        servers.prepare(postgresql(tmp_path))
        assert lock.exists(), "it lives"
        os.kill(child.pid, 9)
        stat = Path(f"/proc/{child.pid}/stat")
        eventually(lambda: " Z " in stat.read_text(), within_s=10)
        servers.prepare(postgresql(tmp_path))
        assert not lock.exists()


def test_an_address_for_people_has_no_password(tmp_path: Path) -> None:
    assert servers.url(postgresql(tmp_path)) == "postgresql://bus@127.0.0.10:5432/postgres"
