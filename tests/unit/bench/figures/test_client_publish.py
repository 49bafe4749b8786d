import pytest

from bench.figures.client_publish import Turn, figures_of, measure


def test_the_ratio_is_that_of_the_medians() -> None:
    ours = [Turn(9000, 50), Turn(1000, 60), Turn(8000, 70)]
    peers = [Turn(500, 300), Turn(1000, 200), Turn(9000, 100)]
    found = {figure.id: figure for figure in figures_of(ours, peers)}
    assert found["way.publish.rate"].value == 8000
    assert found["way.publish.pika_rate"].value == 1000
    assert found["way.publish.ratio"].value == 8
    assert found["way.publish.ratio"].met is True
    assert found["way.publish.cpu_us"].value == 60
    assert found["way.publish.pika_cpu_us"].value == 200


def test_a_turn_counts_per_message() -> None:
    turn = measure(lambda count: None, 1000)
    assert turn.rate_per_s > 1000
    assert turn.cpu_us >= 0
    with pytest.raises(ZeroDivisionError):
        measure(lambda count: None, 0)
