"""Sums against an oracle: never of a silent broker, and each says what it lacks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from messagebus_tools.observing.rates import Rates
from messagebus_tools.observing.snapshot import Kind
from messagebus_tools.observing.totals import total, totals, uncounted
from tests.support.observed import bus, row, seen

NAMES = ("orders/billing", "orders/audit", "queue:jobs")
rows = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(
        st.integers(0, 9),
        st.none() | st.integers(0, 9),
        st.integers(0, 3),
        st.none() | st.integers(1, 9_000),
        st.integers(0, 4),
    ),
)
brokers = st.lists(st.tuples(rows, st.booleans(), st.booleans()), min_size=1, max_size=6)


@given(brokers)
def test_a_sum_is_of_exactly_the_brokers_that_are_counted(
    told: list[tuple[dict[str, tuple[int, int | None, int, int | None, int]], bool, bool]],
) -> None:
    """The oracle adds one by one over brokers that answer and are linked."""
    all_seen = [
        seen(
            f"mb{number}:5672",
            *(
                row(
                    name,
                    "queue" if ":" in name else "sub",
                    ready=r,
                    unacked=u,
                    consumers=c,
                    oldest_ms=age,
                )
                for name, (r, u, c, age, _) in has.items()
            ),
            *(row(name, "park", ready=parked) for name, (*_, parked) in has.items()),
            fault="timed out" if silent else "",
            linked=linked,
        )
        for number, (has, silent, linked) in enumerate(told)
    ]
    observed = bus(*all_seen)
    by_name = totals(observed)
    for name in NAMES:
        good = [has[name] for has, silent, linked in told if not silent and linked and name in has]
        found = by_name.get(name) or total(observed, [name])
        assert found.ready == sum(r for r, *_ in good)
        known = [u for _, u, *_ in good if u is not None]
        assert found.unacked == (sum(known) if known else None)
        assert found.consumers == sum(c for _, _, c, _, _ in good)
        assert found.parked == sum(parked for *_, parked in good)
        ages = [age if r + (u or 0) else 0 for r, u, _, age, _ in good]
        known_ages = [age for age in ages if age is not None]
        assert found.oldest_ms == max(known_ages, default=None)
        assert set(found.without) == {
            f"mb{number}:5672"
            for number, (_, silent, linked) in enumerate(told)
            if silent or not linked
        }
        assert len(found.unconsumed) == sum(not c for _, _, c, _, _ in good)
    everything = total(observed)
    assert everything.ready == sum(each.ready for each in by_name.values())
    assert bool(everything.told) == bool(uncounted(observed))


def test_a_sum_says_what_it_is_of() -> None:
    observed = bus(
        seen("mb1:5672", row("orders/billing", ready=3, oldest_ms=500)),
        seen("mb2:5672", row("orders/billing", ready=4, oldest_ms=900), linked=False),
        seen("mb3:5672", row("orders/billing", ready=5, oldest_ms=900), fault="timed out"),
    )
    found = total(observed)
    assert (found.waiting, found.oldest_ms, found.oldest_on) == (3, 500, "mb1:5672")
    assert found.told == "on 1 of 3 brokers, without mb2:5672, mb3:5672"
    assert found.without["mb3:5672"] == "timed out"


def test_what_only_silent_brokers_had_is_named_and_not_counted() -> None:
    observed = bus(
        seen("mb1:5672"), seen("mb2:5672", row("orders/audit", ready=5), fault="timed out")
    )
    assert totals(observed)["orders/audit"].ready == 0
    assert totals(observed)["orders/audit"].told
    assert totals(observed)["orders/audit"].oldest_ms is None


def test_rates_are_summed_where_they_are_known() -> None:
    observed = bus(seen("mb1:5672", row("orders/billing")), seen("mb2:5672", row("orders/billing")))
    key: tuple[str, str, Kind] = ("mb1:5672", "orders/billing", "sub")
    rates = {key: Rates(2.0, 1.0)}
    found = totals(observed, rates)["orders/billing"]
    assert (found.came, found.left) == (2.0, 1.0)
    assert total(observed).came is None
