"""Application of the inventory to the running HAProxy: write its configuration and reload it, or undo that.

Connections outlive a reload: they stay with the old process, which no longer checks brokers
and is out of the admin socket's reach. That is right for AMQP, whose connections are long and whose
publishes are in flight: cutting them would leave outcomes unknown. It is bounded twice: publishers
renew their connections after `connection_lifetime_s`, and `hard_stop_s` ends the remaining ones. Until
then only the clients of such a connection notice that a broker freezes, by late confirms.

Every function is about one balancer, the inventory's `balancer`, and about its host, `machine`.
"""

from __future__ import annotations

import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inventory.inventory import Inventory
from lb import lint, runtime, state
from lb.errors import ApplyFailed, BalancerUnreachable
from lb.hosts import LocalMachine, Machine
from lb.render import marker, render
from messagebus.errors import ConfigError, one_line
from messagebus.tls import TlsFiles

RELOAD_WITHIN_S = 60.0
"""Time from the signal until the new process answers with the new configuration; 0.1 s when idle. It ends at
once when HAProxy is gone."""
GONE_S = 3.0
"""Time after which a master that is not found has ended: it writes its pid file anew in each reload."""
POLL_S = 0.05
TAIL_CHARS = 500

THIS_MACHINE = LocalMachine()


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The outcome of `apply`.

    changed: the file differs from the one before. reloaded: a new process serves it.
    pid: process id of the serving process, 0 when HAProxy does not run.
    """

    changed: bool
    reloaded: bool
    pid: int


def check(inventory: Inventory, machine: Machine = THIS_MACHINE) -> str:
    """Render the configuration and let HAProxy check it, without touching anything.

    Returns the configuration. Raises ConfigError for faults that the lint or HAProxy finds, and for a
    certificate of its checks that has ended: by that all brokers would be down.
    """
    if inventory.tls:
        file = inventory.tls.check_cert_file
        end_s = TlsFiles(cert_file=str(file)).good_until_s()
        if end_s and end_s < time.time():
            raise ConfigError(f"check_cert_file {file}: has ended, and brokers refuse checks by it")
    return _checked(inventory, machine)


def _checked(inventory: Inventory, machine: Machine) -> str:
    if found := lint.faults(inventory):
        raise ConfigError("balancer: " + "; ".join(found))
    text = render(inventory)
    if faults := machine.config_faults(text, inventory.balancer):
        raise ConfigError(f"HAProxy refuses the configuration: {_alerts(faults)}")
    return text


def prepare_start(inventory: Inventory, machine: Machine = THIS_MACHINE) -> None:
    """Write the files that a stopped HAProxy will read: configuration and state, all brokers down.

    Raises ConfigError as `check`.
    """
    with machine.locked(inventory.balancer):
        _prepare_start(inventory, machine, _checked(inventory, machine))


def apply(
    inventory: Inventory, machine: Machine = THIS_MACHINE, *, reload: bool = False
) -> Applied:
    """Make the running HAProxy serve the inventory; do nothing when it does already.

    reload: reload it even then. Where HAProxy does not run, only its files are written.
    Raises ConfigError (nothing touched), ApplyFailed (the old configuration serves, or
    the text says that it does not), BalancerUnreachable (it runs and does not answer).
    """
    balancer = inventory.balancer
    with machine.locked(balancer) as socket:
        text = check(inventory, machine)
        before = machine.read(balancer.config)
        if not machine.signal_master(balancer, None):
            _prepare_start(inventory, machine, text)
            return Applied(changed=text != before, reloaded=False, pid=0)
        running = runtime.process(socket)
        if text == before and running.description == marker(text) and not reload:
            return Applied(changed=False, reloaded=False, pid=running.pid)
        pid = _change(inventory, machine, socket, before, text, running)
        return Applied(changed=text != before, reloaded=True, pid=pid)


def save_state(inventory: Inventory, machine: Machine = THIS_MACHINE) -> None:
    """Write the state file from the running process; to be called every few seconds and before a stop.

    Raises BalancerUnreachable; the last state file stands then.
    """
    with machine.locked(inventory.balancer) as socket:
        _save_state(inventory, machine, socket)


def _change(
    inventory: Inventory,
    machine: Machine,
    socket: Path,
    before: str,
    text: str,
    running: runtime.Process,
) -> int:
    """Write, reload, wait; undo when the new configuration does not serve. Returns the new pid."""
    balancer = inventory.balancer
    _save_state(inventory, machine, socket)
    machine.write(balancer.config, text)
    began_s = time.monotonic()
    if pid := _reload(inventory, machine, socket, marker(text), running.pid):
        return pid
    took_s = time.monotonic() - began_s
    machine.write(balancer.config, before)
    _reload(inventory, machine, socket, marker(before), running.pid)
    try:
        serves = runtime.process(socket).description == marker(before)
    except BalancerUnreachable:
        serves = False
    now = "the one before is back" if serves else "and the one before does not serve either"
    raise ApplyFailed(f"the new configuration did not serve in {took_s:.0f} s; {now}")


def _reload(
    inventory: Inventory, machine: Machine, socket: Path, wanted: str, pid_before: int
) -> int:
    """Signal the master and wait for a new process. Returns its pid, 0 when none came in time."""
    if not machine.signal_master(inventory.balancer, signal.SIGUSR2):
        return 0
    began_s = lived_s = time.monotonic()
    while (now_s := time.monotonic()) - began_s < RELOAD_WITHIN_S and now_s - lived_s < GONE_S:
        with suppress(BalancerUnreachable):
            now = runtime.process(socket)
            if now.pid != pid_before and now.description == wanted:
                return now.pid
        if machine.signal_master(inventory.balancer, None):
            lived_s = time.monotonic()
        time.sleep(POLL_S)
    return 0


def _prepare_start(inventory: Inventory, machine: Machine, text: str) -> None:
    balancer = inventory.balancer
    machine.write(balancer.config, text)
    saved = machine.read(balancer.state_file)
    machine.write(balancer.state_file, state.cold(saved, inventory.brokers))


def _save_state(inventory: Inventory, machine: Machine, socket: Path) -> None:
    text = runtime.server_state_text(socket)
    machine.write(inventory.balancer.state_file, state.warm(text, inventory.brokers))


def _alerts(stderr: str) -> str:
    """Return HAProxy's complaints in one line, without the bytes that hold the probe's password."""
    alerts = [line.partition(" : ")[2] for line in stderr.splitlines() if "[ALERT]" in line]
    text = re.sub(r"[0-9a-f]{40,}", "***", " | ".join(alerts) or stderr)
    return one_line(text, TAIL_CHARS)
