"""Figures for Prometheus."""

from __future__ import annotations

from messagebus.agent.metrics import Figure, Metrics


def test_figures_are_read_at_each_scrape() -> None:
    value = [1.0]
    metrics = Metrics(
        "h:1",
        lambda: [Figure("ready", "Ready.", value[0]), Figure("lost", "Lost.", 2, counter=True)],
    )
    assert b'messagebus_agent_ready{broker="h:1"} 1.0' in metrics.text()
    value[0] = 0
    text = metrics.text()
    assert b'messagebus_agent_ready{broker="h:1"} 0.0' in text
    assert b'messagebus_agent_lost_total{broker="h:1"} 2.0' in text


def test_nothing_is_collected_before_the_first_scrape() -> None:
    def too_early() -> list[Figure]:
        raise AssertionError("collected")

    Metrics("h:1", too_early)


def test_figures_of_queues_have_their_names() -> None:
    figures = [
        Figure("ready", "Ready.", 1),
        Figure("queue_messages", "There.", 3, queue="mb.sub/a/b"),
        Figure("queue_messages", "There.", 4, queue='"\\'),
    ]
    text = Metrics("h:1", lambda: figures).text().decode()
    assert 'messagebus_agent_queue_messages{broker="h:1",queue="mb.sub/a/b"} 3.0' in text
    assert 'messagebus_agent_queue_messages{broker="h:1",queue="\\"\\\\"} 4.0' in text
    assert text.count("# TYPE messagebus_agent_queue_messages gauge") == 1
