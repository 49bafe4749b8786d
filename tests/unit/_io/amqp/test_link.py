"""_io.amqp.link: what the end of a dial means."""

from __future__ import annotations

import pika.exceptions
import pytest

from messagebus._io.amqp.link import _translate
from messagebus.broker import Broker
from messagebus.errors import LinkLost, LoginRefused

MB1 = Broker.parse("mb1:5672")
OF_VHOST = "NOT_ALLOWED - access to vhost '/' refused for user 'bus': "
FOR_NOW = [
    f"{OF_VHOST}connection limit (1) is reached",
    "NOT_ALLOWED - connection refused for user 'bus': user connection limit (0) is reached",
    "NOT_ALLOWED - connection refused: node connection limit (10000) is reached",
    f"{OF_VHOST}vhost '/' is down",
]


def ended(code: int, text: str, *, in_handshake: bool) -> Exception:
    why: Exception = pika.exceptions.ConnectionClosedByBroker(code, text)
    return pika.exceptions.ProbableAccessDeniedError(repr(why)) if in_handshake else why


@pytest.mark.parametrize("in_handshake", [False, True])
@pytest.mark.parametrize("text", FOR_NOW)
def test_a_limit_or_a_virtual_host_that_is_down_is_no_wrong_password(
    text: str, in_handshake: bool
) -> None:
    fault = _translate(MB1, ended(530, text, in_handshake=in_handshake))
    assert type(fault) is LinkLost
    assert fault.reason == text


@pytest.mark.parametrize("in_handshake", [False, True])
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."),
        (530, "NOT_ALLOWED - vhost 'orders' not found"),
        (530, "NOT_ALLOWED - access to vhost '/' refused for user 'bus'"),
    ],
)
def test_a_login_or_a_right_that_the_broker_does_not_know_is_refused(
    code: int, text: str, in_handshake: bool
) -> None:
    fault = _translate(MB1, ended(code, text, in_handshake=in_handshake))
    assert type(fault) is LoginRefused
    assert fault.reason == text
