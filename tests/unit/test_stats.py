from __future__ import annotations

from messagebus.stats import Status


def test_a_client_that_was_not_started_says_what_to_do() -> None:
    told = Status.INITIALIZED.why_not_running("publisher", "async with")
    assert told == "the publisher was not started: call start(), or use it by `async with`"
    assert Status.STOPPED.why_not_running("publisher", "with") == "the publisher is stopped"
