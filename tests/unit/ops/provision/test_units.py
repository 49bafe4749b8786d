"""Units as systemd itself reads them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ops.__main__ import main
from ops.local.files import inventory_toml
from ops.local.layout import Layout
from ops.provision.units import balancer_files, worker_files
from tests.support.balancer import inventory
from tests.support.systemd import exposure_fault, verify

DEBIAN = Path("/lib/systemd/system/haproxy.service")
# Exposure by systemd-analyze security, 0 to 100: each unit's own here, and a little more.
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(inventory_toml(layout))
    return layout.inventory


def test_a_balancer_s_host_gets_its_units_and_the_keeper(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["units", "--inventory", str(file), "--out", str(out)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert all(path.read_text() for path in written)
    assert [str(path.relative_to(out)) for path in written] == [
        "etc/systemd/system/haproxy.service.d/messagebus.conf",
        "etc/systemd/system/messagebus-balancer-state.service",
        "usr/local/lib/messagebus/keeper.py",
    ]


def test_a_worker_s_host_needs_no_inventory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["units", "--worker", "/opt/shop/bin/messagebus"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# ---- /etc/systemd/system/messagebus-worker@.service\n")
    assert "ExecStart=/opt/shop/bin/messagebus worker ${APP} " in shown


def test_an_unknown_balancer_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["units", "--inventory", str(file), "--balancer", "haprox"]) == 2
    assert "did you mean 'haproxy'?" in capsys.readouterr().err
