import pytest

from bench.figures.ops.way import S, figures_of, longest_silence_ns, without
from bench.rows import Events, Row
from messagebus import BrokerList
from messagebus.recording.manifest import Incident


@pytest.mark.parametrize(
    ("times", "longest"),
    [([], 100), ([40], 60), ([10, 20, 90], 70), ([0, 100, 150, -5], 100), ([95], 95)],
)
def test_silence_is_measured_between_the_two_ends(times: list[int], longest: int) -> None:
    assert longest_silence_ns(times, 0, 100) == longest


def publish(at_s: float, took_s: float) -> Row:
    return {
        "publisher": "p1",
        "outcome": "confirmed",
        "intended_ns": int(at_s * S),
        "confirmed_ns": int((at_s + took_s) * S),
    }


def delivery(at_s: float, broker: str) -> Row:
    return {"consumer": "c1", "broker": broker, "received_ns": int(at_s * S)}


def test_gaps_are_those_after_the_kill_and_of_the_other_brokers() -> None:
    kill = Incident(kind="kill", broker="b1", at_ns=10 * S, done_ns=12 * S)
    events = Events()
    events.published = [publish(5, 3), publish(9.9, 0.5), publish(10.2, 0.7), publish(11, 0.1)]
    # b1 is silent after the kill, which does not count; b2 is silent for 0.75 s.
    events.delivered = [delivery(10 + n / 4, "b2") for n in (1, 2, 3, 6, 7)]
    events.delivered += [delivery(5 + n / 4, "b2") for n in range(20)]
    events.delivered += [delivery(9, "b1")]
    found = {figure.id: figure.value for figure in figures_of(events, [kill])}
    # 9.9 was confirmed at 10.4 and waited from the kill on; 10.2 was confirmed 0.5 s after that.
    assert found["way.kill.publisher_gap_s"] == pytest.approx(0.5)
    assert found["way.kill.consumer_gap_s"] == pytest.approx(0.75)
    assert found["way.kill.consumer_gap_before_s"] == pytest.approx(0.25)


def test_a_publisher_that_is_never_confirmed_again_waits_to_the_end() -> None:
    kill = Incident(kind="kill", broker="b1", at_ns=10 * S, done_ns=16 * S)
    events = Events()
    events.published = [publish(n / 10, 0.01) for n in range(100)]
    events.published += [
        {"publisher": "p1", "outcome": "unknown", "intended_ns": (100 + n) * S // 10}
        for n in range(60)
    ]
    events.delivered = [delivery(n / 10, "b2") for n in range(160)]
    found = {figure.id: figure for figure in figures_of(events, [kill])}
    assert found["way.kill.publisher_gap_s"].value == pytest.approx(6.0)
    assert found["way.kill.publisher_gap_s"].met is False


def test_a_list_without_a_broker_is_the_next_generation() -> None:
    whole = BrokerList.parse("# cluster: c\n# generation: 4\na:1\nb:2 draining\n")
    assert without(whole, "a:1", 5).render() == "# cluster: c\n# generation: 5\nb:2 draining\n"
