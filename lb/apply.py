"""Bring the inventory to the running HAProxy: write its configuration and reload it, or undo that.

Connections outlive a reload: they stay with the process of before, which no longer checks brokers
and is out of the admin socket's reach. That is right for AMQP, whose connections are long and whose
publishes are in flight: cutting them would leave outcomes unknown. It is bounded twice: publishers
renew their connections after `connection_lifetime_s`, and `hard_stop_s` ends what is left. Until
then a broker that freezes is noticed there by its clients alone, by confirms that are late.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lb import lint, runtime, state
from lb.errors import ApplyFailed, BalancerUnreachable
from lb.inventory import Inventory
from lb.render import marker, render
from messagebus.errors import ConfigError

__all__ = ["HAPROXY", "Applied", "apply", "check", "prepare_start", "save_state", "start_command"]

HAPROXY = "/usr/sbin/haproxy"
CHECK_WITHIN_S = 10.0
"""For `haproxy -c`; host names that do not resolve take it longest."""
RELOAD_WITHIN_S = 15.0
"""From the signal until the new process answers with the new configuration; 0.1 s when idle."""
SAVE_WAITS_S = 20.0
"""For an `apply` of somebody else to end: longer than one may take."""
POLL_S = 0.05
TAIL_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What `apply` did.

    changed: the file is another one now. reloaded: a new process serves it.
    pid: of the process that serves, 0 when HAProxy does not run.
    """

    changed: bool
    reloaded: bool
    pid: int


def start_command(inventory: Inventory) -> list[str]:
    """How to start HAProxy in the foreground: a master, whose pid file it writes, and a worker."""
    balancer = inventory.balancer
    return [HAPROXY, "-W", "-f", str(balancer.config), "-p", str(balancer.master_pid_file)]


def check(inventory: Inventory) -> str:
    """Render and let HAProxy read it, without touching anything. Returns the configuration.

    Raises ConfigError for what the lint or HAProxy refuses.
    """
    if found := lint.faults(inventory):
        raise ConfigError("balancer: " + "; ".join(found))
    text = render(inventory)
    # The candidate is never moved from here: HAProxy would find its state file by the same name.
    with tempfile.TemporaryDirectory(prefix="messagebus-lb-") as folder:
        candidate = Path(folder) / "haproxy.cfg"
        write_private(candidate, text)
        _let_haproxy_check(candidate)
    return text


def prepare_start(inventory: Inventory) -> None:
    """Write what a HAProxy that does not run will read: configuration and state, all brokers down.

    Raises ConfigError as `check`.
    """
    with _lock(inventory):
        _prepare_start(inventory, check(inventory))


def apply(inventory: Inventory, *, reload: bool = False) -> Applied:
    """Make the running HAProxy serve what the inventory says; does nothing when it does already.

    reload: reload it even then. Where HAProxy does not run, only its files are written.
    Raises ConfigError (nothing touched), ApplyFailed (the configuration of before serves, or
    the text says that it does not), BalancerUnreachable (it runs and does not answer).
    """
    with _lock(inventory):
        text = check(inventory)
        balancer = inventory.balancer
        before = _read(balancer.config)
        if not _master_runs(inventory):
            _prepare_start(inventory, text)
            return Applied(changed=text != before, reloaded=False, pid=0)
        running = runtime.process(balancer.socket)
        if text == before and running.description == marker(text) and not reload:
            return Applied(changed=False, reloaded=False, pid=running.pid)
        pid = _change(inventory, before, text, running)
        return Applied(changed=text != before, reloaded=True, pid=pid)


def save_state(inventory: Inventory) -> None:
    """Write the state file from what runs; to be called every few seconds and before a stop.

    Raises BalancerUnreachable; the last state file stands then.
    """
    with _lock(inventory):
        _save_state(inventory)


def write_private(path: Path, text: str) -> None:
    """Replace a file at once and for good; only its owner can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _change(inventory: Inventory, before: str, text: str, running: runtime.Process) -> int:
    """Move, reload, wait; undo when the new configuration does not serve. Returns the new pid."""
    balancer = inventory.balancer
    _save_state(inventory)
    write_private(balancer.config, text)
    if pid := _reload(inventory, marker(text), running.pid):
        return pid
    write_private(balancer.config, before)
    _reload(inventory, marker(before), running.pid)
    try:
        serves = runtime.process(balancer.socket).description == marker(before)
    except BalancerUnreachable:
        serves = False
    now = "the one before is back" if serves else "and the one before does not serve either"
    raise ApplyFailed(f"the new configuration did not serve in {RELOAD_WITHIN_S:.0f} s; {now}")


def _reload(inventory: Inventory, wanted: str, pid_before: int) -> int:
    """Signal the master and wait for a new process. Returns its pid, 0 when none came in time."""
    if not _signal_master(inventory, signal.SIGUSR2):
        return 0
    until = time.monotonic() + RELOAD_WITHIN_S
    while time.monotonic() < until:
        with suppress(BalancerUnreachable):
            now = runtime.process(inventory.balancer.socket)
            if now.pid != pid_before and now.description == wanted:
                return now.pid
        time.sleep(POLL_S)
    return 0


def _prepare_start(inventory: Inventory, text: str) -> None:
    balancer = inventory.balancer
    write_private(balancer.config, text)
    write_private(balancer.state_file, state.cold(_read(balancer.state_file), inventory.brokers))


def _save_state(inventory: Inventory) -> None:
    balancer = inventory.balancer
    text = runtime.server_state_text(balancer.socket)
    write_private(balancer.state_file, state.warm(text, inventory.brokers))


def _let_haproxy_check(candidate: Path) -> None:
    # Not "-q": then it is silent about certificates that it cannot load.
    argv = [HAPROXY, "-c", "-f", str(candidate)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=CHECK_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise ApplyFailed(f"cannot run {HAPROXY} -c: {fault}") from fault
    if done.returncode != 0:
        raise ConfigError(f"HAProxy refuses the configuration: {_alerts(done.stderr)}")


def _alerts(stderr: str) -> str:
    """HAProxy's complaints in one line, without the bytes that hold the probe's password."""
    alerts = [line.partition(" : ")[2] for line in stderr.splitlines() if "[ALERT]" in line]
    said = re.sub(r"[0-9a-f]{40,}", "***", " | ".join(alerts) or stderr)
    return " ".join(said.split())[:TAIL_CHARS]


@contextmanager
def _lock(inventory: Inventory) -> Iterator[None]:
    """One writer of configuration and state at a time. Raises ApplyFailed after SAVE_WAITS_S."""
    path = inventory.balancer.config.with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        until = time.monotonic() + SAVE_WAITS_S
        while not _locked(file.fileno()):
            if time.monotonic() > until:
                raise ApplyFailed(f"somebody else applies a configuration ({path})")
            time.sleep(POLL_S)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _master_runs(inventory: Inventory) -> bool:
    return _signal_master(inventory, None)


def _signal_master(inventory: Inventory, signal_number: signal.Signals | None) -> bool:
    """Send a signal to our master, none with None. False when it does not run.

    A pid file may outlive its process and its number may belong to another one by now: the process
    is held by a descriptor while it is looked at, and must be a HAProxy with our configuration.
    """
    try:
        pid = int(inventory.balancer.master_pid_file.read_text())
        process = os.pidfd_open(pid)
    except (OSError, ValueError):
        return False
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        config = os.fsencode(inventory.balancer.config)
        ended = select.select([process], [], [], 0)[0]
        if ended or not arguments[0].endswith(b"haproxy") or config not in arguments:
            return False
        if signal_number is not None:
            signal.pidfd_send_signal(process, signal_number)
        return True
    except OSError:
        return False
    finally:
        os.close(process)
