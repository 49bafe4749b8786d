"""handling: policies that make sense, the meaning of an exception, and words without passwords."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus import ConfigError, Delivery, Message, Park, Queue, Receipt, Reject, RetryLater
from messagebus.core.attempts import Drop, End
from messagebus.handling import (
    TEXT_BYTES_MAX,
    RetryPolicy,
    Words,
    checked_after,
    judge,
    park_headers,
    retry_headers,
    rule_of,
)


def delivery(attempt: int = 1) -> Delivery:
    receipt = Receipt("mb1:5672", 1, 1)
    return Delivery(Message(body=b"x"), receipt, Queue("jobs"), attempt=attempt)


# Policies.
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"attempts_max": 0}, "attempts_max 0: 1 to 1,000"),
        ({"attempts_max": True}, "attempts_max True"),
        ({"attempts_max": 1.5}, "attempts_max 1.5"),
        ({"first_delay_s": -1}, "first_delay_s -1: 0 to 604,800"),
        ({"first_delay_s": "1"}, "first_delay_s '1'"),
        ({"first_delay_s": float("nan")}, "first_delay_s nan"),
        ({"delay_max_s": 604_801}, "delay_max_s 604801"),
        ({"factor": 0.5}, "factor 0.5: 1 to 100"),
        ({"jitter": 1.1}, "jitter 1.1: 0 to 1"),
        ({"retry_on": ValueError}, "retry_on <class 'ValueError'>: a tuple of exception classes"),
        ({"retry_on": (1,)}, "retry_on (1,): a tuple"),
        ({"give_up_on": [KeyError]}, "give_up_on"),
        ({"then": "drown"}, "then 'drown': 'park', 'drop', 'park-key', 'stop'"),
        ({"then": []}, "then []: 'park', 'drop', 'park-key', 'stop'"),
        ({"where": "here"}, "where 'here': 'ladder', 'place' or None"),
    ],
)
def test_a_policy_that_makes_no_sense_is_told(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RetryPolicy(**wrong)
    assert told in str(caught.value)


def test_all_faults_of_a_policy_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"attempts_max.*factor.*then"):
        RetryPolicy(attempts_max=0, factor=0, then="x")  # type: ignore[arg-type]


def test_a_policy_becomes_the_rule_of_the_machine_in_ms() -> None:
    rule = rule_of(RetryPolicy(attempts_max=3, first_delay_s=0.5, delay_max_s=2, then="drop"))
    assert rule[:6] == (3, 500, 2_000, 2.0, 0.2, Drop())


# Judging.
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RetryLater(), (End.LATER, None)),
        (RetryLater(0), (End.LATER, 0)),
        (RetryLater(1.5), (End.LATER, 1_500)),
        (Park("x"), (End.PARK, None)),
        (Reject("x"), (End.REJECT, None)),
        (ValueError(), (End.FAILED, None)),
        (TimeoutError(), (End.FAILED, None)),
        (KeyError(), (End.FAILED_FOR_GOOD, None)),
        (SystemExit(), (End.FAILED_FOR_GOOD, None)),
        (KeyboardInterrupt(), (End.FAILED_FOR_GOOD, None)),
    ],
)
def test_what_an_exception_means(error: BaseException, expected: tuple[End, int | None]) -> None:
    assert judge(RetryPolicy(give_up_on=(LookupError,)), error) == expected


def test_giving_up_wins_over_retrying_and_what_a_handler_asks_for_over_both() -> None:
    policy = RetryPolicy(retry_on=(ValueError,), give_up_on=(UnicodeError, RetryLater))
    assert judge(policy, ValueError())[0] is End.FAILED
    assert judge(policy, UnicodeError())[0] is End.FAILED_FOR_GOOD
    assert judge(policy, TypeError())[0] is End.FAILED_FOR_GOOD
    assert judge(policy, RetryLater())[0] is End.LATER


@pytest.mark.parametrize("after_s", [-1, 604_801, float("nan")])
def test_a_delay_that_no_step_has_is_told_where_it_is_asked_for(after_s: float) -> None:
    with pytest.raises(ConfigError, match="0 to 604,800"):
        RetryLater(after_s)
    with pytest.raises(ConfigError):
        checked_after(after_s)


# Words.
def test_an_exception_of_10_mb_is_cut() -> None:
    text = Words().of(ValueError("x" * 10_000_000))
    assert text.startswith("ValueError: xxx")
    assert text.endswith("...")
    assert len(text.encode()) <= TEXT_BYTES_MAX


def test_a_password_is_hidden_as_it_is_and_as_in_an_address() -> None:
    words = Words(["p@ss/word", ""])
    text = words.of(OSError("amqp://bus:p%40ss%2Fword@mb1 refused p@ss/word"))
    assert text == "OSError: amqp://bus:***@mb1 refused ***"


@given(st.integers(0, 9_000), st.integers(1, 40), st.text("xyzé", max_size=9_000))
def test_no_part_of_a_password_is_left_wherever_it_stands(at: int, times: int, text: str) -> None:
    secret = "S3CRET-S3CRET-" * 20
    text = text[:at] + secret * times + text[at:]
    short = Words([secret]).short(text)
    assert len(short.encode()) <= TEXT_BYTES_MAX
    assert "3CR" not in short


def test_a_text_that_cannot_be_had_is_no_problem() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert Words().of(Odd()) == "Odd: (its text fails: RuntimeError)"
    assert Words().of(Odd("x")) == "Odd: (its text fails: RuntimeError)"
    assert Words().of(ValueError()) == "ValueError"
    assert Words().of(ValueError("\udcff")) == "ValueError: ?"


def test_the_innermost_places_of_an_exception_are_told() -> None:
    def fails() -> None:
        raise ValueError

    try:
        fails()
    except ValueError as error:
        where = Words().where(error)
    assert where.count("test_handling.py:") == 2
    assert where.endswith(" fails")
    assert Words().where(ValueError()) == ""


# Headers of copies.
def test_a_copy_for_another_run_says_which_and_since_when() -> None:
    first = delivery(attempt=2)
    headers = retry_headers(first, 3, "why")
    assert headers.pop("mb-first-ms") == pytest.approx(first.first_ms, abs=1_000)
    assert headers == {"mb-attempt": 3, "mb-retry-reason": "why"}


def test_a_parked_copy_says_why_and_what_was_tried() -> None:
    headers = park_headers(delivery(attempt=4), "why", "ValueError: x")
    assert isinstance(headers.pop("mb-park-ms"), int)
    assert isinstance(headers.pop("mb-park-first-ms"), int)
    assert headers == {
        "mb-park-reason": "why",
        "mb-park-exception": "ValueError: x",
        "mb-park-attempts": 4,
        "mb-park-broker": "mb1:5672",
    }
