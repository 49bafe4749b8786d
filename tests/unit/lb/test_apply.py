"""lb.apply: its use of files, HAProxy and its master, all of them replaced here.

On a real HAProxy: tests/integration/test_balancer_haproxy.py.
"""

from __future__ import annotations

import signal
import stat
import subprocess
from pathlib import Path

import pytest

from inventory.inventory import Balancer, Inventory
from lb import apply as applying
from lb import runtime
from lb.errors import ApplyFailed, BalancerUnreachable
from lb.hosts import LocalMachine
from lb.render import marker, render
from lb.state import rows
from messagebus.errors import ConfigError
from tests.support.balancer import PASSWORD, inventory

STATE = "3 mb_brokers 1 mb1 10.0.1.1 2 8 100 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - - 0\n"


class FakeHAProxy:
    """Master that starts a new worker when told, unless it is `broken` for that configuration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, read: Inventory) -> None:
        self.read = read
        self.checked: list[str] = []
        self.config_faults = ""
        self.runs = False
        self.broken = ""
        self.worker = runtime.Process(pid=1, uptime_s=9, description="")
        self.signals = 0
        monkeypatch.setattr(subprocess, "run", self._check)
        monkeypatch.setattr(
            LocalMachine, "signal_master", lambda _here, *asked: self._signal(*asked)
        )
        monkeypatch.setattr(runtime, "process", self._process)
        monkeypatch.setattr(runtime, "server_state_text", lambda _socket: STATE)
        monkeypatch.setattr(applying, "RELOAD_WITHIN_S", 0.01)
        monkeypatch.setattr(applying, "POLL_S", 0)

    def start(self) -> None:
        self.runs = True
        self.worker = runtime.Process(pid=1, uptime_s=9, description=marker(self._config()))

    def _config(self) -> str:
        return self.read.balancer.config.read_text()

    def _check(self, argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert argv[:3] == ["/usr/sbin/haproxy", "-c", "-f"]
        candidate = Path(argv[3])
        assert stat.S_IMODE(candidate.stat().st_mode) == 0o600
        self.checked.append(candidate.read_text())
        return subprocess.CompletedProcess(
            argv, 1 if self.config_faults else 0, "", self.config_faults
        )

    def _signal(self, _balancer: Balancer, number: signal.Signals | None) -> bool:
        if self.runs and number is signal.SIGUSR2:
            self.signals += 1
            if marker(self._config()) != self.broken:
                self.worker = runtime.Process(
                    pid=self.worker.pid + 1, uptime_s=0, description=marker(self._config())
                )
        return self.runs

    def _process(self, _socket: Path) -> runtime.Process:
        if not self.runs:
            raise BalancerUnreachable("nobody")
        return self.worker


@pytest.fixture
def balancer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHAProxy:
    return FakeHAProxy(monkeypatch, inventory(base=tmp_path))


def test_without_haproxy_its_files_are_written_and_all_brokers_are_down(
    balancer: FakeHAProxy,
) -> None:
    read = balancer.read
    assert applying.apply(read) == applying.Applied(changed=True, reloaded=False, pid=0)
    assert read.balancer.config.read_text() == render(read) == balancer.checked[0]
    assert stat.S_IMODE(read.balancer.config.stat().st_mode) == 0o600
    states = rows(read.balancer.state_file.read_text()).values()
    assert [row.text.split()[5] for row in states] == ["0", "0"]


def test_the_same_configuration_is_not_reloaded(balancer: FakeHAProxy) -> None:
    applying.apply(balancer.read)
    balancer.start()
    assert applying.apply(balancer.read) == applying.Applied(changed=False, reloaded=False, pid=1)
    assert balancer.signals == 0


def test_it_is_reloaded_when_told_to(balancer: FakeHAProxy) -> None:
    applying.apply(balancer.read)
    balancer.start()
    done = applying.apply(balancer.read, reload=True)
    assert done == applying.Applied(changed=False, reloaded=True, pid=2)


def test_a_change_is_reloaded_with_the_state_of_before(balancer: FakeHAProxy) -> None:
    applying.apply(balancer.read)
    balancer.start()
    balancer.read = inventory(3, base=balancer.read.list_file.parent.parent)
    done = applying.apply(balancer.read)
    assert done == applying.Applied(changed=True, reloaded=True, pid=2)
    states = rows(balancer.read.balancer.state_file.read_text())
    assert {name: row.admin_state for name, row in states.items()} == {"mb1": 8, "mb2": 0, "mb3": 0}
    assert states["mb3"].text.split()[5] == "0"


def test_a_file_that_was_never_loaded_is_loaded(balancer: FakeHAProxy) -> None:
    applying.apply(balancer.read)
    balancer.start()
    balancer.worker = runtime.Process(pid=1, uptime_s=9, description="an older one")
    done = applying.apply(balancer.read)
    assert done == applying.Applied(changed=False, reloaded=True, pid=2)


def test_what_does_not_serve_is_rolled_back(balancer: FakeHAProxy) -> None:
    applying.apply(balancer.read)
    balancer.start()
    before = balancer.read.balancer.config.read_text()
    changed = inventory(3, base=balancer.read.list_file.parent.parent)
    balancer.broken = marker(render(changed))
    with pytest.raises(ApplyFailed, match="the one before is back"):
        applying.apply(changed)
    assert balancer.read.balancer.config.read_text() == before
    assert balancer.signals == 2


def test_what_haproxy_refuses_touches_nothing(balancer: FakeHAProxy) -> None:
    secret = PASSWORD.encode().hex()
    balancer.config_faults = (
        "[NOTICE]   (7) : haproxy version is 2.6\n"
        f"[ALERT]    (7) : config : parsing [x:33] : bad {secret * 3}\n"
    )
    with pytest.raises(ConfigError, match=r"refuses .*: config : parsing \[x:33\] : bad \*\*\*$"):
        applying.apply(balancer.read)
    assert not balancer.read.balancer.config.exists()


def test_what_the_lint_refuses_is_not_even_shown_to_haproxy(balancer: FakeHAProxy) -> None:
    bad = inventory(base=balancer.read.list_file.parent.parent, timers={"client_s": 1})
    with pytest.raises(ConfigError, match="balancer: client_s 1"):
        applying.apply(bad)
    assert balancer.checked == []


def test_no_haproxy_program_is_told(balancer: FakeHAProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("no haproxy")

    monkeypatch.setattr(subprocess, "run", missing)
    with pytest.raises(ApplyFailed, match="cannot run /usr/sbin/haproxy -c: no haproxy"):
        applying.apply(balancer.read)


def test_a_second_operator_waits_and_is_told(
    balancer: FakeHAProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lb.hosts.LOCK_WITHIN_S", 0)
    with (
        LocalMachine().locked(balancer.read.balancer),
        pytest.raises(ApplyFailed, match="somebody else applies"),
    ):
        applying.apply(balancer.read)


def test_a_drain_survives_a_start_from_nothing(balancer: FakeHAProxy) -> None:
    balancer.runs = True
    applying.save_state(balancer.read)
    applying.prepare_start(balancer.read)
    states = rows(balancer.read.balancer.state_file.read_text())
    assert (states["mb1"].admin_state, states["mb1"].text.split()[5]) == (8, "0")


def test_the_start_command_runs_a_master_with_a_pid_file(balancer: FakeHAProxy) -> None:
    folder = balancer.read.balancer.config.parent
    assert applying.start_command(balancer.read) == [
        *("/usr/sbin/haproxy", "-W", "-f", f"{folder}/haproxy.cfg"),
        *("-p", f"{folder}/master.pid"),
    ]
