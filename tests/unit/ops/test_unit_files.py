"""Units as systemd itself reads them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ops.unit_files import balancer_files, worker_files
from tests.support.balancer import inventory
from tests.support.systemd import exposure_fault, verify

DEBIAN = Path("/lib/systemd/system/haproxy.service")
# Of systemd-analyze security, 0 to 100: what each of ours gets here, and a little.
EXPOSURE_MAX = {
    "messagebus-balancer-state.service": 15,
    "messagebus-worker@.service": 20,
    "haproxy.service": 40,
}
HOST = dataclasses.replace(
    inventory().balancer,
    config=Path("/etc/haproxy/haproxy.cfg"),
    socket=Path("/run/haproxy/admin.sock"),
    state_file=Path("/var/lib/haproxy/messagebus.state"),
    master_pid_file=Path("/run/haproxy.pid"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All units below a folder, with Debian's own of HAProxy beside them."""
    units = {**balancer_files(inventory(), HOST), **worker_files(Path("/usr/bin/true"))}
    for path, text in units.items():
        file = tmp_path / path.name
        if path.parent.name.endswith(".d"):
            file = tmp_path / path.parent.name / path.name
            file.parent.mkdir()
        file.write_text(text)
    (tmp_path / DEBIAN.name).write_text(DEBIAN.read_text())
    return tmp_path


def test_systemd_has_nothing_against_them(folder: Path) -> None:
    names = ("messagebus-balancer-state.service", "haproxy.service", "messagebus-worker@x.service")
    assert verify(*(folder / name for name in names)) == ""


@pytest.mark.parametrize("name", EXPOSURE_MAX)
def test_what_a_unit_may_do_is_little(folder: Path, name: str) -> None:
    assert exposure_fault(folder / name, EXPOSURE_MAX[name]) == ""


def test_a_keeper_that_fails_does_not_keep_haproxy_from_starting(folder: Path) -> None:
    text = (folder / "haproxy.service.d" / "messagebus.conf").read_text()
    (before,) = re.findall(r"^ExecStartPre=(\S+) .* --config (\S+) ", text, re.MULTILINE)
    assert before == ("-+/usr/bin/python3", str(HOST.config))


def test_a_worker_is_given_longer_than_its_grace(folder: Path) -> None:
    text = (folder / "messagebus-worker@.service").read_text()
    grace, stop = (re.search(rf"{key}[= ](\d+)", text) for key in ("--grace-s", "TimeoutStopSec"))
    assert grace is not None
    assert stop is not None
    assert int(stop[1]) > int(grace[1])


def test_haproxy_may_open_two_files_for_each_connection() -> None:
    many = dataclasses.replace(HOST, sessions_max=50_000)
    texts = balancer_files(inventory(), many).values()
    assert any("LimitNOFILE=101000" in text for text in texts)
