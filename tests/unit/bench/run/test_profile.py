from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import InputInvalid
from bench.run.profile import Profile, unlike
from bench.run.schedule import Constant, Steps

ROOT = Path(__file__).resolve().parents[4]
LEAST = {"name": "x", "load": {"schedule": {"kind": "constant", "rate_per_s": 5}}}


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
def test_every_profile_of_ours_is_read(path: Path) -> None:
    assert Profile.load_file(path).name == path.stem


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "load.schedule: a table with kind = constant"),
        (LEAST | {"name": 3}, "name: a text wanted"),
        (LEAST | {"nam": 3}, "nam is not known; meant is name?"),
        (
            LEAST | {"time": {"measured": 3}},
            "time.measured is not known; meant is time.measured_s?",
        ),
        (LEAST | {"time": {"measured_s": "3"}}, "time.measured_s: float wanted, not '3'"),
        (LEAST | {"time": {"measured_s": 0}}, "measured_s above 0"),
        (LEAST | {"system": {"name": "hornetq"}}, "system.name 'hornetq': one of messagebus"),
        (LEAST | {"messages": {"size": 4}}, "18 bytes or more"),
        (LEAST | {"messages": {"sizes": [[0.5, 100]]}}, "parts of 1 together"),
        ({"name": "x", "load": {"schedule": {"kind": "ramp"}}}, "missing 3 required"),
        (
            {"name": "x", "load": {"schedule": {"kind": "constant", "rate_per_s": -1}}},
            "numbers above 0",
        ),
    ],
)
def test_every_fault_is_told_with_its_place(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        Profile.from_values(values, "p.toml")
    assert said in str(caught.value)
    assert str(caught.value).startswith("p.toml: ")


def test_faults_are_told_together() -> None:
    with pytest.raises(InputInvalid, match=r"load\.schedule: .*; .*name"):
        Profile.from_values({"load": {}}, "x")


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


def test_disturbances_are_tables_with_a_broker_of_the_system() -> None:
    values = LEAST | {"disturbances": [{"at_s": 3, "what": "freeze", "broker": 2}]}
    (one,) = Profile.from_values(values, "x").disturbances
    assert (one.at_s, one.what, one.broker, one.lasts_s) == (3, "freeze", 2, 5.0)
    with pytest.raises(InputInvalid, match="broker one of the system's"):
        Profile.from_values(LEAST | {"disturbances": [{"broker": 9}]}, "x")
    with pytest.raises(InputInvalid, match="what is one of kill, freeze"):
        Profile.from_values(LEAST | {"disturbances": [{"what": "burn"}]}, "x")
    with pytest.raises(InputInvalid, match=r"disturbances\.wat is not known; meant is"):
        Profile.from_values(LEAST | {"disturbances": [{"wat": "kill"}]}, "x")


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"system": {"name": "kombu", "brokers": 1}, "load": {"ack": "many"}}, "load.ack: one of"),
        ({"system": {"name": "perf-test", "brokers": 1}, "messages": {"keys": 3}}, "of its own"),
        ({"system": {"name": "native", "durability": "none"}}, "system.durability: one of"),
        ({"system": {"name": "rabbit"}}, "one of messagebus"),
    ],
)
def test_what_a_system_cannot_is_told(part: dict[str, dict[str, object]], said: str) -> None:
    values = {**LEAST, **part, "load": {**LEAST["load"], **part.get("load", {})}}  # type: ignore[dict-item]
    with pytest.raises(InputInvalid, match=said):
        Profile.from_values(values, "x")


def test_profiles_are_read_back_as_they_were_written() -> None:
    for path in (ROOT / "bench" / "profiles").glob("*.toml"):
        profile = Profile.load_file(path)
        assert Profile.from_values(profile.as_json(), "x") == profile
