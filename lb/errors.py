"""Errors of a balancer.

LbError
    BalancerUnreachable   nothing answers on the admin socket
    ApplyFailed           the new configuration does not serve; the old one is back
    NotReached            a server did not get into the wanted state in time
    AgentRefused          a broker's agent did not take the operators' order
"""

from __future__ import annotations

from messagebus.commands.exits import Codes, Exit

__all__ = ["CODES", "AgentRefused", "ApplyFailed", "BalancerUnreachable", "LbError", "NotReached"]


class LbError(Exception):
    """Root of all errors of this kit; the text is one line for an operator."""


class BalancerUnreachable(LbError):
    """Raised when nothing answers on the admin socket; start HAProxy, or look at the path."""


class ApplyFailed(LbError):
    """Raised when a configuration was refused or does not serve; the one before is in place."""


class NotReached(LbError):
    """Raised when a server is not in the wanted state in time; the order itself stands."""


class AgentRefused(LbError):
    """Raised when an agent did not take an order; nothing has changed on its broker."""


CODES: Codes = {LbError: Exit.FAILED, BalancerUnreachable: Exit.SILENT, NotReached: Exit.SILENT}
