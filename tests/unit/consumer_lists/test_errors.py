from __future__ import annotations

from consumer_lists import errors

NAMES = [name for name in errors.__all__ if name != "CODES"]


def test_every_error_is_in_the_printed_tree() -> None:
    told = errors.__doc__ or ""
    assert all(name in told for name in NAMES)


def test_every_error_has_one_root() -> None:
    assert all(issubclass(getattr(errors, name), errors.ListsError) for name in NAMES)
