from __future__ import annotations

import time

import pytest

from messagebus._validity import good_until_s
from ops.local.certificates import Authority

DAY_S = 86_400


@pytest.mark.parametrize("days", [-3, 5, 397, 40 * 365])
def test_the_end_of_a_certificate_is_read_also_in_another_half_of_the_century(days: int) -> None:
    pem, _key = Authority.make("test").issue("client", days=days)
    assert good_until_s(pem) == pytest.approx(time.time() + days * DAY_S, abs=60)


def test_of_several_the_first_counts() -> None:
    authority = Authority.make("test")
    first, second = authority.issue("client", days=5)[0], authority.issue("client", days=50)[0]
    text = f"our own:\n{first}\n{second}"
    assert good_until_s(text) == pytest.approx(time.time() + 5 * DAY_S, abs=60)


def test_what_is_no_certificate_is_told() -> None:
    pem, key = Authority.make("test").issue("client")
    head, *lines, foot = pem.strip().splitlines()
    short = "\n".join((head, *lines[:1], foot))
    for text in ("", key, f"{head}\n{foot}", f"{head}\nMAA=\n{foot}", short):
        with pytest.raises(ValueError, match=r"no PEM certificate|cannot be read"):
            good_until_s(text)
