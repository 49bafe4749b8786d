from __future__ import annotations

from pathlib import Path

import pytest

from ops.__main__ import main
from ops.local.files import inventory_toml
from ops.local.layout import Layout


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(inventory_toml(layout))
    return layout.inventory


def test_a_balancer_s_host_gets_its_units_and_the_keeper(
    inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["units", "--inventory", str(inventory), "--out", str(out)]) == 0
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


def test_an_unknown_balancer_is_told(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["units", "--inventory", str(inventory), "--balancer", "haprox"]) == 2
    assert "did you mean 'haproxy'?" in capsys.readouterr().err
