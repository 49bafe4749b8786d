"""Texts of good consumer lists, as people write them."""

from __future__ import annotations

from hypothesis import strategies as st

from messagebus.broker import Broker, BrokerList, ListedBroker

brokers = st.builds(
    Broker,
    st.sampled_from(["mb1", "mb2.example", "10.0.0.7", "[::1]", "x-1_y.z"]),
    st.integers(1, 65535),
)
listed = st.builds(
    ListedBroker, broker=brokers, draining=st.booleans(), agent_port=st.integers(1, 65535)
)
broker_lists = st.builds(
    BrokerList,
    cluster=st.sampled_from(["", "prod", "a.b-c_9"]),
    generation=st.integers(0, 10**17),
    listed=st.lists(listed, min_size=1, max_size=6, unique_by=lambda entry: entry.broker).map(
        tuple
    ),
)


@st.composite
def list_texts(draw: st.DrawFn) -> str:
    """The text of a good list, with comments, blank lines and odd spacing somewhere in it."""
    lines: list[str] = []
    for line in draw(broker_lists).render().splitlines():
        lines += draw(st.lists(st.sampled_from(["", "   ", "# a comment", "#"]), max_size=2))
        comment = draw(st.sampled_from(["", " # by hand", "\t"])) if line[0] != "#" else ""
        lines.append(f"{draw(st.sampled_from(['', '  ']))}{line}{comment}")
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))
