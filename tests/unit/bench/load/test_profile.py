"""Profiles, and schedules against the integral of the rate: n processes together send as one would."""

from __future__ import annotations

import contextlib
import itertools
import re
import statistics
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import InputInvalid
from bench.faults import FAULTS
from bench.load.profile import PARTS, Load, Profile, Time, place_of, places, topic_of, unlike
from bench.load.schedule import (
    Bursts,
    Closed,
    Constant,
    Poisson,
    Ramp,
    Replay,
    Schedule,
    Steps,
    intended,
    striped,
)
from bench.load.systems import ALL_FAULTS, SYSTEMS
from tests.support.documents import ROOT, Block, blocks_of
from tests.support.results import profile_with

MEASURING = ROOT / "docs" / "MEASURING.md"
PROFILES_OF_DOCS = [each for each in blocks_of(MEASURING) if each.language == "toml"]
LEAST: dict[str, Any] = {"name": "x", "load": {"schedule": {"kind": "constant", "rate_per_s": 5}}}


def test_a_name_and_a_schedule_are_enough() -> None:
    made = Profile.from_values(LEAST, "x")
    assert made.load.schedule == Constant(rate_per_s=5)
    assert made.system.name == "messagebus"


def test_what_is_written_down_is_what_is_read() -> None:
    values = {
        "name": "x",
        "load": {"schedule": {"kind": "steps", "steps": [[10, 5], [20, 5]]}, "publishers": 3},
        "messages": {"sizes": [[0.9, 200], [0.1, 5000]], "keys": 10},
        "events": True,
    }
    made = Profile.from_values(values, "x")
    assert made.load.schedule == Steps(steps=((10, 5), (20, 5)))
    assert Profile.from_values(made.as_json(), "x") == made


@pytest.mark.parametrize("path", sorted((ROOT / "bench" / "profiles").glob("*.toml")))
def test_every_profile_of_ours_is_read_and_read_back_as_it_was_written(path: Path) -> None:
    profile = Profile.load_file(path)
    assert profile.name == path.stem
    assert Profile.from_values(profile.as_json(), "x") == profile


def scheduled(kind: str, **values: object) -> dict[str, object]:
    return LEAST | {"load": {"schedule": {"kind": kind, **values}}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "name: is missing; load: is missing"),
        ([], "a table wanted"),
        (LEAST | {"name": 3}, "name: a text wanted"),
        (LEAST | {"nam": 3}, "nam is not known; did you mean 'name'?"),
        (
            LEAST | {"time": {"measured": 3}},
            "time.measured is not known; did you mean 'time.measured_s'?",
        ),
        (LEAST | {"time": {"measured_s": "3"}}, "time.measured_s: a number wanted, not '3'"),
        (LEAST | {"time": {"measured_s": float("inf")}}, "measured_s: a number wanted, not inf"),
        (LEAST | {"time": {"warm_up_s": float("nan")}}, "warm_up_s: a number wanted, not nan"),
        (LEAST | {"time": {"measured_s": 0}}, "time.measured_s: 1 to 604,800 wanted, not 0"),
        (LEAST | {"time": {"measured_s": 7.5}}, "time.measured_s: whole seconds wanted, not 7.5"),
        (LEAST | {"time": {"warm_up_s": 0.5}}, "time.warm_up_s: whole seconds wanted, not 0.5"),
        (LEAST | {"time": 5}, "time: a table wanted"),
        (LEAST | {"system": {"name": "hornetq"}}, "system.name: one of messagebus, pika, native"),
        (LEAST | {"system": {"brokers": True}}, "system.brokers: a whole number wanted, not True"),
        (LEAST | {"messages": {"size": 4}}, "messages.size: 18 to 16,777,216 wanted, not 4"),
        (LEAST | {"messages": {"size": 10**12}}, "18 to 16,777,216 wanted, not 1000000000000"),
        (LEAST | {"messages": {"sizes": 5}}, "messages.sizes: an array wanted, not 5"),
        (LEAST | {"messages": {"sizes": [5]}}, "messages.sizes[0]: an array wanted, not 5"),
        (LEAST | {"messages": {"sizes": [["a", 200]]}}, "sizes[0][0]: a number wanted, not 'a'"),
        (LEAST | {"messages": {"sizes": [[0.5, 100]]}}, "parts above 0, of 1 together"),
        (LEAST | {"messages": {"sizes": [[1.5, 100], [-0.5, 99]]}}, "parts above 0, of 1"),
        (
            LEAST | {"messages": {"sizes": [[1, 7]]}},
            "messages.sizes[0][1]: 18 to 16,777,216 wanted",
        ),
        (LEAST | {"messages": {"sizes": [[1, 70]], "file": "x"}}, "messages.sizes, messages.file"),
        (LEAST | {"messages": {"key_skew": 1e9}}, "messages.key_skew: 0 to 10 wanted"),
        (LEAST | {"disturbances": {}}, "disturbances: an array wanted"),
        (LEAST | {"disturbances": [3]}, "disturbances[0]: a table wanted"),
        (scheduled("ramp"), "load.schedule.from_per_s: is missing"),
        ({"name": "x", "load": {"schedule": {"kind": [1]}}}, "load.schedule: a table with kind ="),
        (scheduled("constant", rate_per_s=-1), "rate_per_s: 0.001 to 1,000,000 wanted, not -1"),
        (scheduled("constant", rate_per_s="fast"), "rate_per_s: a number wanted, not 'fast'"),
        (scheduled("constant", rate_per_s=True), "rate_per_s: a number wanted, not True"),
        (scheduled("constant", rate_per_s=float("nan")), "rate_per_s: a number wanted, not nan"),
        (scheduled("constant", rate_per_s=10**400), "rate_per_s: a number wanted, not 1000"),
        (scheduled("steps", steps=5), "load.schedule.steps: an array wanted, not 5"),
        (scheduled("steps", steps=["ab"]), "steps[0]: an array wanted, not 'ab'"),
        (scheduled("steps", steps=[[500]]), "load.schedule.steps[0][1]: is missing"),
        (scheduled("steps", steps=[[5, 1, 1]]), "steps[0]: fewer values wanted"),
        (scheduled("replay", offsets_ns=5), "offsets_ns: an array wanted, not 5"),
        (scheduled("replay", offsets_ns=["a"]), "offsets_ns[0]: a whole number wanted, not 'a'"),
        (scheduled("closed", count=2.5), "load.schedule.count: a whole number wanted, not 2.5"),
    ],
)
def test_every_fault_is_told_with_its_place(values: object, said: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        Profile.from_values(values, "p.toml")
    assert said in str(caught.value)
    assert str(caught.value).startswith("p.toml: ")


def test_faults_are_told_together_in_the_order_of_the_settings() -> None:
    values = {
        "load": {"schedule": {"kind": "constant", "rate_per_s": 0}, "window": "x"},
        "messages": {"size": 1},
        "time": {"drain_s": -1, "measured_s": "x"},
        "disturbances": [{"what": "burn"}],
    }
    with pytest.raises(InputInvalid) as caught:
        Profile.from_values(values, "x")
    places = [each.split(":")[0] for each in str(caught.value).removeprefix("x: ").split("; ")]
    assert places == [
        "name",
        "load.schedule.rate_per_s",
        "load.window",
        "messages.size",
        "time.measured_s",
        "time.drain_s",
        "disturbances[0].what",
    ]


def test_a_file_of_payloads_is_looked_at_before_anything_starts(tmp_path: Path) -> None:
    path, payloads = tmp_path / "p.toml", tmp_path / "records"
    text = '[messages]\nfile = "{}"\n[load]\nschedule = {{ kind = "closed", count = 1 }}\n'
    path.write_text('name = "x"\ntime = { warm_up_s = 0 }\n' + text.format(payloads))
    with pytest.raises(InputInvalid, match=r"messages\.file: .*: cannot read: No such file"):
        Profile.load_file(path)
    payloads.write_text("\n\n")
    with pytest.raises(InputInvalid, match=r"messages\.file: .*: no record in it"):
        Profile.load_file(path)
    payloads.write_text("one\n")
    profile = Profile.load_file(path)
    payloads.unlink()
    # A run that was can still be read.
    assert Profile.from_values(profile.as_json(), "x") == profile


@pytest.mark.parametrize(("text", "said"), [(None, "cannot read"), ("[", "not TOML")])
def test_a_file_that_is_none_is_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "p.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputInvalid, match=said):
        Profile.load_file(path)


def test_profiles_are_alike_whatever_their_system_and_name_are() -> None:
    one = Profile.from_values(LEAST, "x")
    other = Profile.from_values(LEAST | {"name": "y", "system": {"brokers": 1}}, "x")
    assert unlike(one, other) == []
    slower = Profile.from_values(LEAST | {"messages": {"size": 200}}, "x")
    assert unlike(one, slower) == ["messages.size: 1024 and 200"]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            {"kind": "constant", "rte": 1},
            ".rte is not known; did you mean 'load.schedule.rate_per_s'?",
        ),
        (
            {"kind": "constant", "rate": 1},
            ".rate is not known; did you mean 'load.schedule.rate_per_s'?",
        ),
        ({"kind": "constant", "step": [[1, 1]]}, ".step is not known"),
        (
            {"kind": "steps", "step": [[1, 1]]},
            ".step is not known; did you mean 'load.schedule.steps'?",
        ),
    ],
)
def test_a_typo_in_a_schedule_suggests_only_settings_of_its_kind(
    schedule: dict[str, object], said: str
) -> None:
    with pytest.raises(InputInvalid) as raised:
        Profile.from_values({"name": "x", "load": {"schedule": schedule}}, "x")
    faults = str(raised.value).removeprefix("x: ").split("; load.")
    assert any(each.endswith(said) for each in faults), faults


@pytest.mark.parametrize("block", PROFILES_OF_DOCS, ids=lambda block: block.name)
def test_profiles_of_the_documents_can_be_run_and_reach_each_broker(block: Block) -> None:
    profile = Profile.from_values(tomllib.loads(block.text), block.name)
    assert profile.load.publishers >= 2 * profile.system.brokers


@pytest.mark.parametrize("name", ["small", "steady", "failover", "rebalance"])
def test_profiles_of_several_brokers_reach_each_broker(name: str) -> None:
    profile = Profile.load_file(ROOT / "bench" / "profiles" / f"{name}.toml")
    assert profile.load.publishers >= 2 * profile.system.brokers


def test_disturbances_are_tables_with_a_broker_of_the_system() -> None:
    values = LEAST | {"disturbances": [{"at_s": 3, "what": "freeze", "broker": 2}]}
    (one,) = Profile.from_values(values, "x").disturbances
    assert (one.at_s, one.what, one.broker, one.lasts_s) == (3, "freeze", 2, 5.0)
    with pytest.raises(InputInvalid, match=r"disturbances\.broker: 1 to 3"):
        Profile.from_values(LEAST | {"disturbances": [{"broker": 9}]}, "x")
    with pytest.raises(InputInvalid, match="what: one of kill, freeze"):
        Profile.from_values(LEAST | {"disturbances": [{"what": "burn"}]}, "x")
    with pytest.raises(InputInvalid, match=r"disturbances\[0\]\.wat is not known; did you mean"):
        Profile.from_values(LEAST | {"disturbances": [{"wat": "kill"}]}, "x")


KOMBU = {"system": {"name": "kombu", "brokers": 1}}
NATIVE = {"system": {"name": "native"}}
PERF_TEST = {"system": {"name": "perf-test", "brokers": 1}}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (KOMBU | {"load": {"ack": "many"}}, "load.ack: one of"),
        (KOMBU | {"disturbances": [{"what": "kill"}]}, "kombu: disturbances.what: freeze, alarm"),
        (PERF_TEST | {"messages": {"keys": 3}}, "of its own"),
        (PERF_TEST | {"messages": {"topics": 2}, "load": {"publishers": 2}}, "one topic"),
        (PERF_TEST | {"load": {"consume_from_s": 2}}, "of its own"),
        (PERF_TEST | {"disturbances": [{}]}, "perf-test: disturbances.what: it has none"),
        (
            {"system": {"name": "native", "durability": "none"}},
            "native: system.durability: one of fsync",
        ),
        (NATIVE | {"disturbances": [{"what": "agent"}]}, "native: disturbances.what: kill"),
        (NATIVE | {"disturbances": [{"what": "drain"}]}, "native: disturbances.what: kill"),
        ({"load": {"prefetch": 2001}}, "messagebus: load.prefetch: 2,000 at most"),
        ({"system": {"name": "rabbit"}}, "one of messagebus"),
        ({"events": True, "name": "a b"}, "name: letters, digits"),
        (
            {"disturbances": [{"at_s": 1000}]},
            "disturbances.at_s, disturbances.lasts_s: over after 35",
        ),
        (
            {"disturbances": [{"at_s": 31}]},
            "disturbances.at_s, disturbances.lasts_s: over after 35",
        ),
        ({"messages": {"topics": 2}}, "load.publishers: one at least for each of 2 topics"),
        ({"messages": {"subscriptions": 2}}, "load.consumers: none, or one at least for each of 2"),
    ],
)
def test_what_cannot_be_done_is_told_before_anything_starts(
    part: dict[str, Any], said: str
) -> None:
    values = {**LEAST, **part, "load": {**LEAST["load"], **part.get("load", {})}}
    with pytest.raises(InputInvalid, match=re.escape(said)):
        Profile.from_values(values, "x")


def test_a_larger_batch_lets_more_be_delivered_at_once() -> None:
    load = LEAST["load"] | {"batch": 10, "prefetch": 20_000}
    assert Profile.from_values(LEAST | {"load": load}, "x").load.prefetch == 20_000


# Values that a TOML file may have.
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "at_s", "a"]), inner, max_size=2)
    ),
    max_leaves=6,
)
SETTINGS = [
    *((part, name) for part, kind in PARTS.items() for name in kind.__dataclass_fields__),
    *((part, "") for part in (*PARTS, "name", "events", "disturbances")),
]
KINDS = [
    (made.__dataclass_fields__["kind"].default, name)
    for made in get_args(Schedule)
    for name in made.__dataclass_fields__
]


@given(st.sampled_from(SETTINGS), VALUES)
def test_no_value_of_a_setting_is_a_traceback(setting: tuple[str, str], value: object) -> None:
    part, name = setting
    changed = LEAST.get(part, {}) | {name: value} if name else value
    with contextlib.suppress(InputInvalid):
        Profile.from_values(LEAST | {part: changed}, "x")


@given(st.sampled_from(KINDS), VALUES)
def test_no_value_of_a_schedule_is_a_traceback_then_or_later(
    setting: tuple[str, str], value: object
) -> None:
    kind, name = setting
    given_ = {"kind": kind, **GOOD[kind], name: value}
    with contextlib.suppress(InputInvalid):
        schedule = Profile.from_values(LEAST | {"load": {"schedule": given_}}, "x").load.schedule
        # The times of a steered load are not known beforehand.
        times = [] if kind == "steered" else list(itertools.islice(intended(schedule), 100))
        assert times == sorted(times)


GOOD: dict[str, dict[str, object]] = {
    "constant": {"rate_per_s": 1},
    "ramp": {"from_per_s": 0, "to_per_s": 1, "over_s": 1},
    "steps": {"steps": [[1, 1]]},
    "poisson": {"rate_per_s": 1},
    "bursts": {"count": 1, "every_s": 1},
    "replay": {"offsets_ns": [0]},
    "closed": {"count": 1},
    "steered": {"rate_per_s": 1, "count": 1},
}


def test_every_topic_has_every_subscription() -> None:
    messages = {"topics": 2, "subscriptions": 2}
    profile = profile_with({"publishers": 2, "consumers": 4}, messages=messages)
    wanted = [("load0", "sink0"), ("load0", "sink1"), ("load1", "sink0"), ("load1", "sink1")]
    assert places(profile) == wanted
    assert [place_of(profile, number) for number in range(5)] == [*wanted, wanted[0]]
    assert [topic_of(profile, number) for number in range(3)] == ["load0", "load1", "load0"]


def test_places_may_have_names_and_consumers_by_turns() -> None:
    profile = profile_with({"consumers": 3}, messages={"places": ["t/a", "t/a", "t/b"]})
    assert places(profile) == [("t", "a"), ("t", "b")]
    assert [place_of(profile, n)[1] for n in range(4)] == ["a", "a", "b", "a"]
    assert topic_of(profile, 7) == "t"
    assert Profile.from_values(profile.as_json(), "x") == profile
    with pytest.raises(InputInvalid, match=r"messages.places\[1\]: TOPIC/SUBSCRIPTION wanted"):
        profile_with(messages={"places": ["t/a", "t", "u/a"]})
    with pytest.raises(InputInvalid, match="one at least for each of 2 topics"):
        profile_with({"consumers": 3}, messages={"places": ["t/a", "u/a"]})


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_can_be_done_to_a_system_is_a_fault_that_there_is(name: str) -> None:
    assert set(SYSTEMS[name].faults) <= FAULTS.keys()


def test_everything_can_be_done_to_ours() -> None:
    assert set(ALL_FAULTS) == FAULTS.keys()
    assert SYSTEMS["messagebus"].faults == ALL_FAULTS


S = 1_000_000_000


def first(schedule: Schedule, count: int) -> list[int]:
    return list(itertools.islice(intended(schedule, seed=3), count))


@pytest.mark.parametrize(
    ("schedule", "times"),
    [
        (Constant(rate_per_s=4), [0, S // 4, S // 2, 3 * S // 4]),
        # Below one a second, and below the number of processes: kept.
        (Constant(rate_per_s=0.25), [0, 4 * S, 8 * S, 12 * S]),
        (Bursts(count=2, every_s=3), [0, 0, 3 * S, 3 * S]),
        (Replay(offsets_ns=(0, 10, 50), speed=2), [0, 5, 25]),
        # Two a second for a second, then one in two; the interval that runs is stretched.
        (Steps(steps=((2, 1), (0.5, 1))), [0, S // 2, S, 3 * S]),
        (Steps(steps=((1, 1.5), (2, 9))), [0, S, 1_750_000_000, 2_250_000_000]),
        (Ramp(from_per_s=1, to_per_s=1, over_s=9), [0, S, 2 * S, 3 * S]),
    ],
)
def test_messages_are_intended_when_the_schedule_says(schedule: Schedule, times: list[int]) -> None:
    assert first(schedule, len(times)) == times


@given(st.floats(0, 100), st.floats(0.5, 200), st.floats(1, 20))
def test_a_ramp_has_as_many_as_its_integral(start: float, end: float, over_s: float) -> None:
    times = first(Ramp(from_per_s=start, to_per_s=end, over_s=over_s), 300)
    assert times == sorted(times)
    for number, at_ns in enumerate(times):
        at_s = at_ns / S
        inside = min(at_s, over_s)
        area = start * inside + (end - start) * inside * inside / (2 * over_s)
        area += end * max(0.0, at_s - over_s)
        assert area == pytest.approx(number, abs=1e-2)


def test_poisson_arrivals_are_independent_and_the_same_for_a_seed() -> None:
    times = first(Poisson(rate_per_s=100), 5000)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean, spread = statistics.fmean(gaps) / S, statistics.stdev(gaps) / S
    assert mean == pytest.approx(0.01, rel=0.1)
    assert spread == pytest.approx(mean, rel=0.1)
    assert times == first(Poisson(rate_per_s=100), 5000)


@given(st.integers(1, 7), st.integers(1, 60))
def test_processes_share_a_schedule_exactly(of: int, count: int) -> None:
    schedule = Poisson(rate_per_s=10)
    parts = [
        list(striped(iter(first(schedule, count)), number=number, of=of)) for number in range(of)
    ]
    assert sorted(time for part in parts for time in part) == first(schedule, count)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        (Constant(rate_per_s=1), []),
        (Constant(rate_per_s=0), ["rate_per_s"]),
        (Constant(rate_per_s=1e12), ["rate_per_s"]),
        (Poisson(rate_per_s=-1), ["rate_per_s"]),
        (Ramp(from_per_s=0, to_per_s=1, over_s=1), []),
        (Ramp(from_per_s=0, to_per_s=0, over_s=1), ["to_per_s"]),
        (Ramp(from_per_s=-5, to_per_s=-5, over_s=0), ["from_per_s", "to_per_s", "over_s"]),
        (Steps(steps=((1, 1),)), []),
        (Steps(steps=()), ["steps"]),
        (Steps(steps=((0, 1),)), ["steps[0][0]"]),
        (Steps(steps=((1, -1),)), ["steps[0][1]"]),
        (Bursts(count=5000, every_s=5), []),
        (Bursts(count=0, every_s=0), ["count", "every_s"]),
        (Bursts(count=10_000_000, every_s=1), ["count, every_s"]),
        (Replay(offsets_ns=(0, 0, 5)), []),
        (Replay(offsets_ns=(5, 0)), ["offsets_ns"]),
        (Replay(offsets_ns=(-1, 0)), ["offsets_ns"]),
        (Replay(offsets_ns=(), speed=0), ["speed", "offsets_ns"]),
        (Closed(count=1), []),
        (Closed(count=0), ["count"]),
        (Closed(count=1 << 32), ["count"]),
    ],
)
def test_a_number_that_makes_no_sense_is_named(schedule: Schedule, named: list[str]) -> None:
    profile = Profile(name="x", load=Load(schedule=schedule), time=Time(warm_up_s=0))
    assert [each.split(":")[0] for each in profile.faults()] == [
        f"load.schedule.{name}" for name in named
    ]
