from messagebus.core.receipts import Receipt
from messagebus.destination import Queue
from messagebus.hooks import Hooks
from messagebus.message import Delivery, Message
from messagebus.outcome import Durability, Outcome, Published

MESSAGE = Message(body=b"x", message_id="1")


def test_hooks_do_nothing_by_themselves() -> None:
    hooks = Hooks()
    delivery = Delivery(MESSAGE, Receipt("b:1", 1, 1), Queue("jobs"))
    assert hooks.publishing("orders", MESSAGE) is MESSAGE
    hooks.published("orders", MESSAGE, Published("1", Outcome.CONFIRMED, Durability.FSYNC))
    hooks.handled(delivery, "ack", None)
    with hooks.handling(delivery), hooks.publishing_many("orders"):
        pass
