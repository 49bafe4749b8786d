"""Errors of an inventory's cluster: a command that failed here or on a host, too few brokers that serve."""

from __future__ import annotations

from collections.abc import Sequence

from messagebus.errors import MessageBusError

# Lines of a failed command's output that an error shows; the whole is in its `output`.
TAIL_LINES = 12


class CommandFailed(MessageBusError):
    """Raised when a command failed; exit_code is -1 when it did not end in time.

    output: everything it wrote to standard output and standard error.
    """

    def __init__(self, argv: Sequence[str], exit_code: int, output: str, host: str = "") -> None:
        where = f" on {host}" if host else ""
        how = "did not end in time" if exit_code == -1 else f"exit code {exit_code}"
        super().__init__(f"{argv[0]}{where}: {how}: {tail(output)}")
        self.argv = tuple(argv)
        self.exit_code = exit_code
        self.output = output
        self.host = host


class TooFewServe(MessageBusError):
    """Raised when a broker is not taken out, since too few others take publishes; nothing has changed."""


def tail(output: str) -> str:
    """Return the last lines of an output, in one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-TAIL_LINES:]) or "no output"
