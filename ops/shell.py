"""Runs commands, here or over SSH. The only user of sh and Fabric.

Commands are argv lists; nothing is ever read by a shell here, and quoting for the shell at the far
end of SSH happens in this file.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sh

from ops.errors import CommandFailed

__all__ = ["fabric_task", "run", "run_over_ssh", "write_over_ssh"]

TIMED_OUT = -1
NOT_FOUND = 127
SSH_CONNECT_WITHIN_S = 10


def run(argv: Sequence[str], *, timeout_s: float, cwd: Path | None = None) -> str:
    """Run a command on this machine and return what it wrote.

    Raises CommandFailed, with the whole output, for another exit code than 0 or after timeout_s.
    """
    written: list[str] = []
    try:
        # sh keeps a process's last 750 bytes in its errors, so the output is kept here.
        sh.Command(argv[0])(
            *argv[1:],
            _timeout=timeout_s,
            _cwd=str(cwd or Path.cwd()),
            _env=dict(os.environ),
            _out=written.append,
            _err=written.append,
            _tty_out=False,
        )
    except sh.CommandNotFound as fault:
        raise CommandFailed(argv, NOT_FOUND, f"no such program: {argv[0]}") from fault
    except sh.TimeoutException as fault:
        raise CommandFailed(argv, TIMED_OUT, "".join(written)) from fault
    except sh.ErrorReturnCode as fault:
        raise CommandFailed(argv, fault.exit_code, "".join(written)) from fault
    return "".join(written)


def run_over_ssh(host: str, argv: Sequence[str], *, timeout_s: float) -> str:
    """The same on another host, as whom and by what key ~/.ssh/config says."""
    # Fabric takes half a second to import, which the local cluster need not wait for.
    from fabric import Connection
    from invoke.exceptions import CommandTimedOut

    try:
        with Connection(host, connect_timeout=SSH_CONNECT_WITHIN_S) as connection:
            ended = connection.run(shlex.join(argv), hide=True, warn=True, timeout=timeout_s)
    except CommandTimedOut as fault:
        raise CommandFailed(argv, TIMED_OUT, str(fault.result.stdout), host) from fault
    except OSError as fault:
        raise CommandFailed(argv, NOT_FOUND, f"SSH: {fault}", host) from fault
    if not ended.ok:
        raise CommandFailed(argv, ended.exited, ended.stdout + ended.stderr, host)
    return str(ended.stdout)


def write_over_ssh(host: str, path: str, text: str, *, mode: str, timeout_s: float) -> None:
    """Write a whole file on another host, its folder too; its text is in no command line.

    mode: octal digits. Raises CommandFailed.
    """
    from fabric import Connection

    argv = ("install", "-D", "-m", mode, "/dev/stdin", path)
    try:
        with Connection(host, connect_timeout=SSH_CONNECT_WITHIN_S) as connection:
            ended = connection.run(
                shlex.join(argv),
                hide=True,
                warn=True,
                timeout=timeout_s,
                in_stream=io.StringIO(text),
            )
    except OSError as fault:
        raise CommandFailed(argv, NOT_FOUND, f"SSH: {fault}", host) from fault
    if not ended.ok:
        raise CommandFailed(argv, ended.exited, ended.stdout + ended.stderr, host)


def fabric_task(function: Callable[..., Any]) -> Any:
    """Make a function a task of `fab`."""
    from fabric import task

    return task(function)
