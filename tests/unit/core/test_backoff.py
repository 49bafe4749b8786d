"""core.backoff: the wait grows, is bounded, and half of it is certain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.backoff import backoff_ms

SHARES = st.floats(0, 1, allow_nan=False)


@pytest.mark.parametrize(
    ("failures", "share", "expected"),
    [
        (1, 0.0, 50),
        (1, 1.0, 100),
        (2, 0.0, 100),
        (2, 1.0, 200),
        (3, 0.5, 300),
        (7, 1.0, 5_000),
        (1_000_000, 0.0, 2_500),
        (1_000_000, 1.0, 5_000),
        (0, 1.0, 100),
        (-3, 0.0, 50),
    ],
)
def test_the_wait_doubles_up_to_its_bound(failures: int, share: float, expected: int) -> None:
    assert backoff_ms(failures, first_ms=100, max_ms=5_000, share=share) == expected


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(1, 100_000), SHARES)
def test_at_least_half_of_the_full_wait_is_certain(
    failures: int, first_ms: int, max_ms: int, share: float
) -> None:
    full_ms = min(max_ms, first_ms * 2 ** min(max(failures - 1, 0), 20))
    wait_ms = backoff_ms(failures, first_ms=first_ms, max_ms=max_ms, share=share)
    assert full_ms // 2 <= wait_ms <= full_ms


@given(st.integers(1, 40), SHARES)
def test_one_more_failure_never_shortens_the_wait(failures: int, share: float) -> None:
    before = backoff_ms(failures, first_ms=20, max_ms=2_000, share=share)
    assert backoff_ms(failures + 1, first_ms=20, max_ms=2_000, share=share) >= before
