from bench.figures.ops.attach import without
from messagebus import BrokerList


def test_a_list_without_a_broker_is_the_next_generation() -> None:
    whole = BrokerList.parse("# cluster: c\n# generation: 4\na:1\nb:2 draining\n")
    assert without(whole, "a:1", 5).render() == "# cluster: c\n# generation: 5\nb:2 draining\n"
