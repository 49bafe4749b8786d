"""The system of an App; its turns are tested in tests/integration/test_bench_systems.py."""

from bench.systems.ours_app import BODY_BYTES, Order, order_message
from messagebus import Delivery, Queue, Receipt
from messagebus.payloads import reader


def test_what_is_measured_is_a_kilobyte_that_fits_its_type() -> None:
    message = order_message()
    assert len(message.body) == BODY_BYTES
    order = reader(Order)(Delivery(message, Receipt("b:5672", 1, 1), Queue("q")))
    assert order.number == 17
