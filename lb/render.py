"""HAProxy's configuration as text, from the inventory, with its check of a broker's gate. Pure.

The gate check is the conversation by which HAProxy learns whether a broker may take publishes: bytes of
AMQP 0.9.1, a login, and a passive declaration of the gate's queue, which answers how many messages are in it:
one when the gate is open. Brokers before RabbitMQ 4.2.6 require no right for that; later ones require any
right on the queue, and the probe has a right that allows nothing else. (4.2.6 and 4.3.0 themselves require
the right to configure: there the gate is never seen.) A broker that is starting, frozen, or lacks something
wanted does not pass. Every step names the length of the good answer, so that any other answer is a failure at
once instead of a time-out.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass

from inventory.files import Templates
from inventory.inventory import Inventory
from messagebus.clock import whole_ms
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.topology import GATE

BROKERS = "mb_brokers"
"""Name of the backend whose servers are the brokers."""
WEIGHT = 100
"""Weight of every broker; an operator may set another at run time."""

ALIVE = "/alive"
"""Path at which HAProxy says, on the port of its statistics, that it works."""

_UNMARKED = "0" * 16
_MARKER = re.compile(r'^    description "(messagebus \S+ config [0-9a-f]{16})"$', re.MULTILINE)


def _quoted(value: object) -> str:
    """Return any value as one word of HAProxy's language: nothing is special in '...' but '."""
    return "'" + str(value).replace("'", "'\\''") + "'"


_TEMPLATES = Templates("lb", quoted=_quoted, in_ms=lambda seconds: f"{whole_ms(seconds)}ms")


def render(inventory: Inventory) -> str:
    """Render the whole configuration of the inventory's balancer; holds the probe's password.

    Raises ConfigError when the probe's password could not be read.
    """
    balancer = inventory.balancer
    if balancer.probe_password is None:
        raise ConfigError(f"probe_password_file: cannot read {balancer.probe_password_file}")
    words = {
        "cluster": inventory.cluster,
        "balancer": balancer,
        "timers": balancer.timers,
        "brokers": inventory.brokers,
        "gateways": inventory.gateways,
        "tls": inventory.tls,
        "supervisor": inventory.supervisor,
        "backend": BROKERS,
        "alive": ALIVE,
        "weight": WEIGHT,
        "gate_steps": gate_check_steps(balancer.probe_user, balancer.probe_password),
        "checksum": _UNMARKED,
    }
    text = _TEMPLATES.render("haproxy.cfg.j2", words)
    return text.replace(_UNMARKED, hashlib.sha256(text.encode()).hexdigest()[:16], 1)


def marker(config: str) -> str:
    """Return the description that ``show info`` of a process with this configuration has; "" for none."""
    found = _MARKER.search(config)
    return found[1] if found else ""


PROTOCOL = b"AMQP\x00\x00\x09\x01"
# The broker's own offer. A larger number is refused in silence, and so is 0.
CHANNEL_MAX = 2047
# At least 4,096 by AMQP, 8,192 by RabbitMQ 4; at most 131,072, the broker's offer.
FRAME_MAX = 8_192
METHOD, FRAME_END = 1, b"\xce"

START, START_OK, TUNE, TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
OPEN, OPEN_OK, CLOSE, CLOSE_OK = (10, 40), (10, 41), (10, 50), (10, 51)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
DECLARE, DECLARE_OK = (50, 10), (50, 11)
PASSIVE = 1
GATE_MESSAGES = 1
REPLY_SUCCESS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: send these bytes, then expect others in the answer.

    bytes_min: length of the good answer; a longer or equally long one without `expect` fails.
    fault: text for the operator when it fails.
    secret: the bytes to send hold the password.
    """

    send: bytes
    expect: bytes
    bytes_min: int
    fault: str
    secret: bool = False


def gate_check_steps(user: str, password: Secret, *, vhost: str = "/") -> tuple[Step, ...]:
    """Return the steps of the conversation, in order."""
    return (
        Step(send=PROTOCOL, expect=_id(START), bytes_min=11, fault="no AMQP"),
        Step(
            send=_start_ok(user, password),
            expect=_id(TUNE),
            bytes_min=len(_frame(0, TUNE, b"\0" * 8)),
            fault="the login of the probe is refused",
            secret=True,
        ),
        Step(
            send=_tune_ok() + _open(vhost) + _channel_open() + _declare(GATE),
            expect=_id(DECLARE_OK) + _short(GATE) + struct.pack(">I", GATE_MESSAGES),
            bytes_min=len(
                _frame(0, OPEN_OK, b"\0")
                + _frame(1, CHANNEL_OPEN_OK, b"\0" * 4)
                + _frame(1, DECLARE_OK, _short(GATE) + b"\0" * 8)
            ),
            fault="the gate is shut, or the probe may not see it",
        ),
        Step(
            send=_close(),
            expect=_id(CLOSE_OK),
            bytes_min=len(_frame(0, CLOSE_OK)),
            fault="no goodbye",
        ),
    )


def _start_ok(user: str, password: Secret) -> bytes:
    # With this capability a refused login is answered, not met with silence for seconds.
    capabilities = _field("authentication_failure_close", b"t\x01")
    properties = (
        _field("product", b"S" + _long("messagebus balancer"))
        + _field("connection_name", b"S" + _long("gate check"))
        + _field("capabilities", b"F" + _long(capabilities))
    )
    response = f"\0{user}\0{password.reveal()}"
    return _frame(
        0, START_OK, _long(properties) + _short("PLAIN") + _long(response) + _short("en_US")
    )


def _tune_ok() -> bytes:
    heartbeat_s = 0
    return _frame(0, TUNE_OK, struct.pack(">HIH", CHANNEL_MAX, FRAME_MAX, heartbeat_s))


def _open(vhost: str) -> bytes:
    return _frame(0, OPEN, _short(vhost) + _short("") + b"\0")


def _channel_open() -> bytes:
    return _frame(1, CHANNEL_OPEN, _short(""))


def _declare(queue: str) -> bytes:
    no_arguments = _long(b"")
    return _frame(1, DECLARE, b"\0\0" + _short(queue) + bytes([PASSIVE]) + no_arguments)


def _close() -> bytes:
    return _frame(0, CLOSE, struct.pack(">H", REPLY_SUCCESS) + _short("") + b"\0" * 4)


def _frame(channel: int, method: tuple[int, int], arguments: bytes = b"") -> bytes:
    payload = _id(method) + arguments
    return struct.pack(">BHI", METHOD, channel, len(payload)) + payload + FRAME_END


def _id(method: tuple[int, int]) -> bytes:
    return struct.pack(">HH", *method)


def _short(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">B", len(raw)) + raw


def _long(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(raw)) + raw


def _field(name: str, value: bytes) -> bytes:
    return _short(name) + value
