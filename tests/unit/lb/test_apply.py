"""Configurations brought to one balancer and to a fleet of hosts."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from inventory.errors import CommandFailed
from inventory.inventory import Balancer, Inventory
from inventory.tables import Tls
from lb import apply as applying
from lb import fleet, runtime
from lb.apply import Applied
from lb.errors import ApplyFailed, BalancerUnreachable, LbError, NotReached
from lb.fleet import Fleet
from lb.hosts import Connection, LocalMachine, Machine, RemoteMachine, is_our_master
from lb.render import marker, render
from lb.runtime import ServerState
from lb.state import rows
from messagebus.errors import ConfigError
from ops.local.certificates import Authority
from tests.support.balancer import PASSWORD, UP, inventory

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

    def _check(
        self, argv: list[str], *, input: str, **_: object
    ) -> subprocess.CompletedProcess[str]:
        assert argv == [str(self.read.balancer.program), "-c", "-f", "/dev/stdin"]
        self.checked.append(input)
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


def test_a_certificate_of_checks_that_has_ended_is_refused_while_the_one_before_still_serves(
    balancer: FakeHAProxy, tmp_path: Path
) -> None:
    """HAProxy would load it, and each broker would refuse its checks: all of them down at once."""
    applying.apply(balancer.read)
    balancer.start()
    authority = Authority.make("of a test")
    file = tmp_path / "check.pem"
    tls = Tls(ca_file=file, cert_file=file, key_file=file, server_name="b", check_cert_file=file)
    secured = dataclasses.replace(balancer.read, tls=tls)
    file.write_text("".join(authority.issue("check", days=-1)))
    with pytest.raises(ConfigError, match=rf"check_cert_file {file}: has ended"):
        applying.apply(secured)
    assert balancer.signals == 0
    file.write_text("".join(authority.issue("check")))
    assert applying.apply(secured).reloaded


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
    with pytest.raises(ConfigError, match=r"refuses .*: config : parsing \[x:33\] : bad \*\*\*"):
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
        pytest.raises(ApplyFailed, match="another operator applies"),
    ):
        applying.apply(balancer.read)


def test_a_drain_survives_a_start_from_nothing(balancer: FakeHAProxy) -> None:
    balancer.runs = True
    applying.save_state(balancer.read)
    applying.prepare_start(balancer.read)
    states = rows(balancer.read.balancer.state_file.read_text())
    assert (states["mb1"].admin_state, states["mb1"].text.split()[5]) == (8, "0")


LONELY = dataclasses.replace(UP, agent="L4TOUT")
ONE, TWO = Path("one"), Path("two")


class Balancers:
    """Two admin sockets; the second may be gone, deaf to orders, or not know the broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shows: dict[Path, dict[str, ServerState]] = {
            ONE: {"mb1": LONELY},
            TWO: {"mb1": LONELY},
        }
        self.gone: set[Path] = set()
        self.deaf: set[Path] = set()
        self.orders: list[Path] = []
        monkeypatch.setattr(runtime, "servers", self._servers)
        monkeypatch.setattr(
            runtime, "maint", lambda s, _, *, on: self._order(s, verdict="maint" if on else "up")
        )
        monkeypatch.setattr(runtime, "set_drain", lambda s, _, *, on: self._order(s, drained=on))
        monkeypatch.setattr(runtime, "set_weight", lambda s, _, w: self._order(s, weight=w))

    def _servers(self, socket: Path) -> dict[str, ServerState]:
        if socket in self.gone:
            raise BalancerUnreachable("nobody")
        return self.shows[socket]

    def _order(self, socket: Path, **what: object) -> None:
        if socket in self.gone:
            raise BalancerUnreachable("nobody")
        self.orders.append(socket)
        if socket not in self.deaf:
            changed = dataclasses.replace(self.shows[socket]["mb1"], **what)  # type: ignore[arg-type]
            self.shows[socket] = {"mb1": changed}


@pytest.fixture
def balancers(monkeypatch: pytest.MonkeyPatch) -> Balancers:
    return Balancers(monkeypatch)


BOTH = Fleet({"lb1": ONE, "lb2": TWO})


def test_an_order_reaches_every_balancer_and_is_read_back(balancers: Balancers) -> None:
    assert fleet.set_weight(BOTH, "mb1", 7).everywhere(lambda state: state.weight == 7)
    assert fleet.maint(BOTH, "mb1", on=True).shown["lb2"].verdict == "maint"
    assert fleet.maint(BOTH, "mb1", on=False).shown["lb2"].verdict == "up"
    assert fleet.set_drain(BOTH, "mb1", on=True).shown["lb1"].drained
    assert len(balancers.orders) == 8


@pytest.mark.parametrize("fault", ["gone", "deaf"])
def test_a_balancer_that_does_not_follow_is_named_and_the_other_one_did(
    balancers: Balancers, fault: str
) -> None:
    getattr(balancers, fault).add(TWO)
    with pytest.raises(NotReached, match="mb1 is not of weight 7 on every balancer: lb2: ") as told:
        fleet.set_weight(BOTH, "mb1", 7)
    assert "lb1" not in str(told.value)
    assert balancers.shows[ONE]["mb1"].weight == 7


def test_a_balancer_that_does_not_know_the_broker_is_told(balancers: Balancers) -> None:
    balancers.shows[TWO] = {}
    seen = BOTH.look("mb1")
    assert not seen.everywhere(lambda state: True)
    assert "lb2: HAProxy knows no server 'mb1': see `lb apply`" in seen.differing(
        lambda state: False
    )


def test_nothing_is_ordered_by_hand_where_some_balancer_hears_the_agent(
    balancers: Balancers,
) -> None:
    balancers.shows[TWO] = {"mb1": UP}
    for order in (fleet.maint, fleet.set_drain):
        with pytest.raises(LbError, match="the agent of mb1 answers lb2 and would undo it"):
            order(BOTH, "mb1", on=True)
    assert balancers.orders == []


def two_balancers() -> Inventory:
    read = inventory()
    far = dataclasses.replace(read.balancer, name="lb2", host="front2")
    return dataclasses.replace(read, balancers=(read.balancer, far))


def test_a_balancer_of_another_host_is_reached_over_its_socket_here() -> None:
    @contextmanager
    def open_socket(balancer: Balancer) -> Iterator[Path]:
        assert balancer.host == "front2"
        yield TWO

    read = two_balancers()
    with fleet.opened(read, open_socket) as reached:
        assert reached == Fleet({"haproxy": read.balancer.socket, "lb2": TWO}, {})


def test_a_host_that_is_away_hides_no_other(balancers: Balancers) -> None:
    def open_socket(_: Balancer) -> AbstractContextManager[Path]:
        raise BalancerUnreachable("SSH: no route")

    with fleet.opened(two_balancers(), open_socket) as reached:
        assert reached.unreachable == {"lb2": "SSH: no route"}
        assert list(reached.sockets) == ["haproxy"]


DONE = Applied(changed=True, reloaded=True, pid=7)


class Fronts:
    """Three balancers. away: cannot be reached; refuses: its HAProxy; fails: the new one does not serve."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = inventory()
        more = [dataclasses.replace(read.balancer, name=f"lb{number}") for number in (2, 3)]
        self.read = dataclasses.replace(read, balancers=(read.balancer, *more))
        self.away = self.refuses = self.fails = ""
        self.log: list[str] = []
        monkeypatch.setattr(fleet, "check", self._check)
        monkeypatch.setattr(fleet, "apply", self._apply)

    @contextmanager
    def connect(self, balancer: Balancer) -> Iterator[Machine]:
        if balancer.name == self.away:
            raise BalancerUnreachable("no route")
        yield cast(Machine, None)

    def _check(self, read: Inventory, _place: Machine) -> None:
        self.log.append(f"check {read.balancer.name}")
        if read.balancer.name == self.refuses:
            raise ConfigError("HAProxy refuses the configuration: x")

    def _apply(self, read: Inventory, _place: Machine, *, reload: bool = False) -> Applied:
        self.log.append(f"apply {read.balancer.name}")
        if read.balancer.name == self.fails:
            raise ApplyFailed("it did not serve; the one before is back")
        return DONE

    def apply_all(self) -> list[Any]:
        return list(fleet.apply_all(self.read, self.connect))


@pytest.fixture
def fronts(monkeypatch: pytest.MonkeyPatch) -> Fronts:
    return Fronts(monkeypatch)


def test_all_are_checked_before_the_first_is_touched_then_one_by_one(fronts: Fronts) -> None:
    assert [(balancer.name, done) for balancer, done in fronts.apply_all()] == [
        ("haproxy", DONE),
        ("lb2", DONE),
        ("lb3", DONE),
    ]
    assert fronts.log == [
        *("check haproxy", "check lb2", "check lb3"),
        *("apply haproxy", "apply lb2", "apply lb3"),
    ]


def test_one_that_refuses_leaves_all_as_they_were(fronts: Fronts) -> None:
    fronts.refuses = "lb3"
    with pytest.raises(ConfigError, match=r"^lb3: HAProxy refuses"):
        fronts.apply_all()
    assert not [each for each in fronts.log if each.startswith("apply")]


def test_one_that_is_away_leaves_all_as_they_were(fronts: Fronts) -> None:
    fronts.away = "lb2"
    with pytest.raises(ApplyFailed, match=r"^lb2: no route"):
        fronts.apply_all()
    with pytest.raises(ApplyFailed, match=r"^lb2: no route"):
        fleet.check_all(fronts.read, fronts.connect)
    assert not [each for each in fronts.log if each.startswith("apply")]


def test_after_one_that_does_not_serve_no_other_is_touched(fronts: Fronts) -> None:
    fronts.fails = "lb2"
    with pytest.raises(ApplyFailed, match=r"^lb2: .* is back; not touched: lb3$"):
        fronts.apply_all()
    assert "apply lb3" not in fronts.log


def test_a_fault_of_the_inventory_asks_nobody(fronts: Fronts) -> None:
    fronts.read = dataclasses.replace(fronts.read, brokers=())
    with pytest.raises(ConfigError, match="no broker in the inventory"):
        fronts.apply_all()
    assert fronts.log == []


def test_one_that_is_said_to_be_dead_gets_its_files_where_its_host_is_there(fronts: Fronts) -> None:
    second = fronts.read.find_balancer("lb2")
    assert fleet.apply_absent(fronts.read, fronts.connect, second) == DONE
    fronts.away = "lb2"
    assert fleet.apply_absent(fronts.read, fronts.connect, second) == "no route"


@pytest.mark.parametrize(
    ("cmdline", "is_ours"),
    [
        (b"/usr/sbin/haproxy\0-Ws\0-f\0/etc/x.cfg\0-p\0pid\0", True),
        (b"haproxy\0-f\0/etc/x.cfg\0", True),
        (b"/usr/sbin/haproxy\0-f\0/etc/y.cfg\0", False),
        (b"vi\0/etc/x.cfg\0", False),
        (b"", False),
    ],
)
def test_our_master_is_a_haproxy_with_our_configuration(cmdline: bytes, is_ours: bool) -> None:
    assert is_our_master(cmdline, Path("/etc/x.cfg")) is is_ours


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    here = LocalMachine()
    assert here.read(tmp_path / "file") == ""
    here.write(tmp_path / "file", "text")
    assert here.read(tmp_path / "file") == "text"


@pytest.mark.parametrize(
    "text", ["", "no number", "1", "999999999", pytest.param(str(os.getpid()), id="own")]
)
def test_a_pid_that_is_not_our_haproxy_is_never_signalled(tmp_path: Path, text: str) -> None:
    read = inventory(base=tmp_path)
    read.balancer.master_pid_file.parent.mkdir()
    read.balancer.master_pid_file.write_text(text)
    assert not LocalMachine().signal_master(read.balancer, signal.SIGUSR2)


BALANCER = inventory().balancer


class Host:
    """Host with files that records its commands."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.ran: list[list[str]] = []
        self.refuses = ""
        self.away = False

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> str:
        if self.away:
            raise CommandFailed(argv, 127, "SSH: no route", "front2")
        match list(argv):
            case ["env", "LC_ALL=C", "cat", path]:
                if path not in self.files:
                    raise CommandFailed(argv, 1, f"cat: {path}: No such file or directory", "f")
                return self.files[path]
            case ["/usr/sbin/haproxy", "-c", "-f", path]:
                assert path in self.files
                if self.refuses:
                    raise CommandFailed(argv, 1, self.refuses, "front2")
            case ["rm", "-f", path]:
                self.files.pop(path, None)
            case words:
                self.ran.append(words)
        return ""

    def write(self, path: Path, text: str, *, mode: int) -> None:
        assert mode == 0o600
        self.run(["true"], timeout_s=1)
        self.files[str(path)] = text

    def remote(self, _host: str) -> Iterator[Connection]:
        raise AssertionError("one connection is enough")

    @contextmanager
    def forwarded(
        self, host: str, socket: Path, *, lock: Path | None = None, within_s: float = 0
    ) -> Iterator[Path]:
        if self.away:
            raise CommandFailed(["flock"], 1, "", host)
        assert (socket, lock) == (BALANCER.socket, BALANCER.lock_file)
        yield Path("/tmp/here")


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def far(host: Host) -> RemoteMachine:
    return RemoteMachine(host, "front2", host)  # type: ignore[arg-type]


def test_files_are_read_and_written_there(far: RemoteMachine, host: Host) -> None:
    assert far.read(BALANCER.config) == ""
    far.write(BALANCER.config, "text")
    assert far.read(BALANCER.config) == "text"
    host.away = True
    for act in (lambda: far.read(BALANCER.config), lambda: far.write(BALANCER.config, "")):
        with pytest.raises(BalancerUnreachable, match=r"on front2: .*no route"):
            act()


def test_its_own_haproxy_reads_the_candidate_which_does_not_stay(
    far: RemoteMachine, host: Host
) -> None:
    assert far.config_faults("text", BALANCER) == ""
    host.refuses = "[ALERT] (7) : config : bad"
    assert far.config_faults("text", BALANCER) == host.refuses
    host.refuses = "command not found"
    with pytest.raises(ApplyFailed, match="cannot run /usr/sbin/haproxy -c"):
        far.config_faults("text", BALANCER)
    assert host.files == {}


def test_our_master_is_signalled_and_no_other_process(far: RemoteMachine, host: Host) -> None:
    assert not far.signal_master(BALANCER, signal.SIGUSR2)
    host.files[str(BALANCER.master_pid_file)] = "47 11; reboot\n"
    assert not far.signal_master(BALANCER, signal.SIGUSR2)
    host.files[str(BALANCER.master_pid_file)] = "4711\n"
    assert not far.signal_master(BALANCER, signal.SIGUSR2)
    host.files["/proc/4711/cmdline"] = "vi\0x\0"
    assert not far.signal_master(BALANCER, signal.SIGUSR2)
    host.files["/proc/4711/cmdline"] = f"/usr/sbin/haproxy\0-f\0{BALANCER.config}\0"
    assert far.signal_master(BALANCER, None)
    assert host.ran == []
    assert far.signal_master(BALANCER, signal.SIGUSR2)
    assert host.ran == [["kill", "-12", "4711"]]


def test_the_lock_there_is_held_while_the_socket_is_here(far: RemoteMachine, host: Host) -> None:
    with far.locked(BALANCER) as socket:
        assert socket == Path("/tmp/here")
    host.away = True
    with pytest.raises(BalancerUnreachable), far.locked(BALANCER):
        raise AssertionError("nobody is there")
