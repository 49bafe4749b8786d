"""Errors of operating a cluster.

OpsError
    LocalFault     the local cluster cannot do what was asked; one line says why
    NoRoom         a host's disk has too little room to be changed
    PlanFailed     a step of a playbook failed; the steps before it are in the journal
    NoAnswer       an agent, a broker or the balancer did not answer a question
        CannotTell     a host answers, but the question could not be answered there
        NotProved      what answers takes no login or token of ours, or proves none: it may be another one
    LockHeld       another operator is changing this cluster
    RunOpen        an unfinished run of a playbook is in the way
    JournalUnreadable  the record of a playbook's steps cannot be read
CommandFailed (inventory.errors)
    HostUnreachable  there is no SSH to a host: down, another address, no login
        HostKeyWrong     it answers with another key than the known one, or with an unknown one
    SudoRefused      the SSH user may not become root without a password
"""

from __future__ import annotations

import consumer_lists.errors
import lb.errors
from inventory.errors import CommandFailed, tail
from messagebus.commands.exits import Codes, Exit
from messagebus.errors import MessageBusError


class OpsError(MessageBusError):
    """Root of all errors of this kit."""


class LocalFault(OpsError):
    """Raised when the local cluster cannot do what was asked; the text is one line for the user."""


class HostUnreachable(CommandFailed):
    """Raised when no SSH connection to a host can be made; nothing was changed there."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(("ssh",), 255, reason, host)
        self.args = (f"{host}: no SSH: {tail(reason)}",)


class HostKeyWrong(HostUnreachable):
    """Raised when a host's key is not the one in known_hosts, or not known at all; nothing was sent to it."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(host, reason)
        known = "is not the known one" if "does not match" in reason else "is not known"
        self.args = (
            f"{host}: its host key {known}: another machine might answer there; check the key,"
            " and put it into known_hosts",
        )


class SudoRefused(CommandFailed):
    """Raised when a host's user may not become root without a password; nothing was changed there."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(("sudo",), 1, reason, host)
        self.args = (f"{host}: sudo refused: {tail(reason)}; it must need no password",)


class NoRoom(OpsError):
    """Raised when a host's disk has too little room for the files; nothing was changed there."""

    def __init__(self, host: str, free_mb: int, wanted_mb: int) -> None:
        super().__init__(
            f"{host}: no room: {free_mb} MB are free on its disk, {wanted_mb} are wanted"
        )


class PlanFailed(OpsError):
    """Raised when a step failed; run the same command again to resume, after looking at the reason."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"step {step!r}: {reason}")
        self.step = step
        self.reason = reason


class NoAnswer(OpsError):
    """Raised when an agent, a broker or the balancer did not answer; ask again, or look at it."""


class CannotTell(NoAnswer):
    """Raised when a host that answers could not do what was asked: it is alive, and nothing more is known."""


class NotProved(NoAnswer):
    """Raised when what answers refuses our login or token, or proves none: it may be another one."""


class LockHeld(OpsError):
    """Raised when another playbook holds the lock of this cluster; wait for it, or find out who runs it."""

    def __init__(self, who: str, since: str) -> None:
        super().__init__(f"{who} is changing this cluster since {since}")
        self.who = who
        self.since = since


class RunOpen(OpsError):
    """Raised when an unfinished run must be finished, undone or abandoned first; the text says which."""


class JournalUnreadable(OpsError):
    """Raised when a journal is damaged or of another version; look at the cluster, then abandon the run."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}; see what was done, then close it with --abandon")
        self.file = file


# Exit codes, with those of the kits that this one calls.
CODES: Codes = {
    **lb.errors.CODES,
    **consumer_lists.errors.CODES,
    OpsError: Exit.FAILED,
    HostUnreachable: Exit.SILENT,
    NoAnswer: Exit.SILENT,
    NotProved: Exit.LOGIN,
    HostKeyWrong: Exit.LOGIN,
    SudoRefused: Exit.LOGIN,
}
