from __future__ import annotations

import pika.frame
import pika.spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.render import CHANNEL_MAX, gate_check_steps
from messagebus.secret import Secret
from messagebus.topology import GATE


def _methods(sent: bytes) -> list[tuple[int, object]]:
    """Return (channel, method) of every frame, by another implementation."""
    found = []
    while sent:
        consumed, frame = pika.frame.decode_frame(sent)
        assert isinstance(frame, pika.frame.Method)
        found.append((frame.channel_number, frame.method))
        sent = sent[consumed:]
    return found


def test_it_greets_first() -> None:
    assert gate_check_steps("probe", Secret("x"))[0].send == b"AMQP\x00\x00\x09\x01"


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_login_is_plain_and_asks_to_be_told_of_a_refusal(user: str, password: str) -> None:
    ((channel, start_ok),) = _methods(gate_check_steps(user, Secret(password))[1].send)
    assert isinstance(start_ok, pika.spec.Connection.StartOk)
    assert (channel, start_ok.mechanism, start_ok.locale) == (0, "PLAIN", "en_US")
    response = start_ok.response
    raw = response if isinstance(response, bytes) else response.encode()
    assert raw == f"\0{user}\0{password}".encode()
    assert start_ok.client_properties["capabilities"] == {"authentication_failure_close": True}


def test_only_the_login_is_secret() -> None:
    assert [step.secret for step in gate_check_steps("probe", Secret("x"))] == [
        False,
        True,
        False,
        False,
    ]


def test_the_gates_queue_is_declared_passively_in_one_send() -> None:
    tune, opened, channel, declare = _methods(gate_check_steps("probe", Secret("x"))[2].send)
    assert isinstance(tune[1], pika.spec.Connection.TuneOk)
    assert (tune[1].channel_max, tune[1].heartbeat) == (CHANNEL_MAX, 0) == (2047, 0)
    assert isinstance(opened[1], pika.spec.Connection.Open)
    assert opened[1].virtual_host == "/"
    assert isinstance(channel[1], pika.spec.Channel.Open)
    assert isinstance(declare[1], pika.spec.Queue.Declare)
    assert declare[0] == channel[0] == 1
    assert (declare[1].queue, declare[1].passive) == (GATE, True)


def test_it_says_goodbye() -> None:
    ((_, close),) = _methods(gate_check_steps("probe", Secret("x"))[3].send)
    assert isinstance(close, pika.spec.Connection.Close)
    assert close.reply_code == 200


GOOD = [
    (1, pika.spec.Connection.Tune(2047, 131072, 60), 0),
    (2, pika.spec.Queue.DeclareOk(GATE, 1, 0), 1),
    (3, pika.spec.Connection.CloseOk(), 0),
]


@pytest.mark.parametrize(("index", "answer", "channel"), GOOD)
def test_a_good_answer_is_expected_and_long_enough(
    index: int, answer: pika.amqp_object.Method, channel: int
) -> None:
    step = gate_check_steps("probe", Secret("x"))[index]
    before = b""
    if index == 2:
        before = pika.frame.Method(0, pika.spec.Connection.OpenOk()).marshal()
        before += pika.frame.Method(1, pika.spec.Channel.OpenOk()).marshal()
    received = before + pika.frame.Method(channel, answer).marshal()
    assert step.expect in received
    assert step.bytes_min == len(received)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(pika.spec.Queue.DeclareOk(GATE, 0, 0), id="the broker was started since"),
        pytest.param(pika.spec.Queue.DeclareOk(GATE, 0, 1), id="somebody reads it"),
        pytest.param(pika.spec.Channel.Close(404, f"NOT_FOUND - {GATE}", 50, 10), id="new broker"),
        pytest.param(pika.spec.Channel.Close(403, f"ACCESS_REFUSED {GATE}", 50, 10), id="no right"),
    ],
)
def test_a_shut_gate_is_told_by_length_without_waiting(answer: pika.amqp_object.Method) -> None:
    step = gate_check_steps("probe", Secret("x"))[2]
    received = pika.frame.Method(0, pika.spec.Connection.OpenOk()).marshal()
    received += pika.frame.Method(1, pika.spec.Channel.OpenOk()).marshal()
    received += pika.frame.Method(1, answer).marshal()
    assert step.expect not in received
    assert len(received) >= step.bytes_min


def test_the_password_is_in_no_repr() -> None:
    assert "sesame" not in repr(Secret("sesame"))
    assert "sesame" not in repr(
        [step for step in gate_check_steps("u", Secret("sesame")) if not step.secret]
    )
