"""HAProxy's configuration as text, from the inventory. Pure: reads and writes nothing."""

from __future__ import annotations

import hashlib
import re

from inventory.files import templates
from inventory.inventory import Inventory
from lb import gate_check
from messagebus.errors import ConfigError

__all__ = ["BROKERS", "WEIGHT", "marker", "render"]

BROKERS = "mb_brokers"
"""Name of the backend whose servers are the brokers."""
WEIGHT = 100
"""Weight of every broker; an operator may set another at run time."""

_UNMARKED = "0" * 16
_MARKER = re.compile(r'^    description "(messagebus \S+ config [0-9a-f]{16})"$', re.MULTILINE)
_TEMPLATES = templates("lb")


def _quoted(value: object) -> str:
    """Return any value as one word of HAProxy's language: nothing is special in '...' but '."""
    return "'" + str(value).replace("'", "'\\''") + "'"


_TEMPLATES.filters["quoted"] = _quoted


def render(inventory: Inventory) -> str:
    """Render the whole configuration of the inventory's balancer; holds the probe's password.

    Raises ConfigError when the probe's password could not be read.
    """
    balancer = inventory.balancer
    if balancer.probe_password is None:
        raise ConfigError(f"probe_password_file: cannot read {balancer.probe_password_file}")
    text = _TEMPLATES.get_template("haproxy.cfg.j2").render(
        cluster=inventory.cluster,
        balancer=balancer,
        timers=balancer.timers,
        brokers=inventory.brokers,
        tls=inventory.tls,
        supervisor=inventory.supervisor,
        backend=BROKERS,
        weight=WEIGHT,
        gate_steps=gate_check.steps(balancer.probe_user, balancer.probe_password),
        checksum=_UNMARKED,
    )
    return text.replace(_UNMARKED, hashlib.sha256(text.encode()).hexdigest()[:16], 1)


def marker(config: str) -> str:
    """Return the description that ``show info`` of a process with this configuration has; "" for none."""
    found = _MARKER.search(config)
    return found[1] if found else ""
