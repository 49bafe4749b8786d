from __future__ import annotations

from spark.gapchart import ROWS_MAX, Around, Gap, silences


def test_each_event_has_its_longest_silences_with_their_names_and_lengths() -> None:
    gaps = [Gap("publisher", f"publisher-{n}", 10.0, 2.5 - n / 10) for n in range(ROWS_MAX + 3)]
    svg = silences([Around("kill mb1", 9.5, 12.0, gaps), Around("reload", 20.0, 20.0, [])])
    assert f"kill mb1, at 9.5 s (the {ROWS_MAX} longest of {ROWS_MAX + 3})" in svg
    assert ">publisher-0<" in svg
    assert "2.50 s" in svg
    assert "reload" not in svg
    assert "seconds since" not in svg
    assert "+1 s" in svg


def test_nothing_silent_is_no_chart() -> None:
    assert silences([]) == ""
    assert silences([Around("reload", 1.0, 1.0, [])]) == ""


def test_names_that_are_too_long_keep_their_ends() -> None:
    name = "a-very-long-name-of-a-publisher-that-nobody-would-read-0007"
    svg = silences([Around("kill mb1", 1.0, 1.0, [Gap("publisher", name, 1.0, 0.1)])])
    assert name not in svg
    assert "nobody-would-read-0007"[-12:] in svg
