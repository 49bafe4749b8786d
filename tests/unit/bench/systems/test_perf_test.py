import pytest

from bench.errors import BenchError
from bench.systems.perf_test import Line, options, parse, turn_of
from tests.support.bench_task import bench_task

SENT = (
    "id: test-1, time 2.002 s, sent: 24909 msg/s, returned: 0 msg/s, confirmed: 24735 msg/s, "
    "nacked: 0 msg/s, min/median/75th/95th/99th confirm latency: 534/13691/17621/29995/40256 µs"
)
RECEIVED = "id: test-1, time 1.015 s, received: 52396 msg/s, min/median/75th/95th/99th consumer ..."


def test_lines_of_rates_are_read_and_others_are_not() -> None:
    assert parse(SENT) == Line(2.002, 24735)
    assert parse(RECEIVED) == Line(1.015, 52396)
    assert parse("id: test-1, sending rate avg: 25930 msg/s") is None
    assert parse("id: test-1, starting consumer #0") is None


def seconds(*rates: float) -> list[Line]:
    return [
        Line(float(n), rate, user_s=n * 0.2, system_s=n * 0.1) for n, rate in enumerate(rates, 1)
    ]


def test_only_the_seconds_after_the_warm_up_count() -> None:
    turn = turn_of(seconds(1, 1000, 5000, 10_000, 30_000), warm_up_s=3)
    assert (turn.messages, turn.took_s) == (40_000, 2)
    assert turn.user_s == pytest.approx(0.4)
    assert turn.system_s == pytest.approx(0.2)


def test_the_second_in_which_the_queue_ran_dry_and_later_ones_do_not_count() -> None:
    turn = turn_of(seconds(40_000, 50_000, 60_000, 60_000, 10_000, 0), warm_up_s=2)
    assert turn.messages == 120_000
    assert turn.took_s == 2


def test_too_short_a_run_is_an_error() -> None:
    with pytest.raises(BenchError, match="before it was warm"):
        turn_of(seconds(100, 100), warm_up_s=3)
    with pytest.raises(BenchError, match="before it was warm"):
        turn_of([], warm_up_s=3)


def test_its_command_line_names_what_is_there_and_no_password() -> None:
    publishing = options(bench_task(window=50, seconds=8))
    assert publishing[publishing.index("--confirm") + 1] == "50"
    assert "mb.topic/figures" in publishing
    consuming = options(bench_task(verb="consume", window=1000))
    assert consuming[consuming.index("--qos") + 1] == "1000"
    assert "mb.sub/figures/sink" in consuming
    assert not [word for word in publishing if "amqp://" in word]
