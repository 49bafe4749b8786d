import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.errors import InputInvalid
from bench.figures.cli import GROUPS, chosen, figures, keep
from bench.figures.form import Figure, Results


def figure(id: str, value: float) -> Figure:
    return Figure(id=id, what="x", value=value, unit="s", repeat="y")


def test_a_group_that_is_measured_again_replaces_its_own_figures_alone(tmp_path: Path) -> None:
    path = tmp_path / "client.json"
    keep(path, "client.a", [figure("client.a.x", 1), figure("client.a.y", 2)], {"at": "1"})
    keep(path, "client.b", [figure("client.b.x", 3)], {"at": "2"})
    keep(path, "client.a", [figure("client.a.x", 4)], {"at": "3"})
    found = Results.load(path)
    assert {each.id: each.value for each in found.figures} == {
        "client.a.x": 4,
        "client.a.y": 2,
        "client.b.x": 3,
    }
    assert found.environment["at"] == "3"
    assert found.environment["groups"]["client.b"] == {"at": "2"}


def test_samples_are_kept_where_there_are_any(tmp_path: Path) -> None:
    with_samples = Figure(id="a", what="x", value=2, unit="s", repeat="y", samples=(1, 2, 3))
    path = keep(tmp_path / "x.json", "a", [with_samples, figure("b", 1)], {"at": "1"})
    first, second = json.loads(path.read_text())["figures"]
    assert first["samples"] == [1, 2, 3]
    assert "samples" not in second
    assert Results.load(path).figures == (with_samples, figure("b", 1))


def test_a_wrong_name_is_told_before_anything_is_started() -> None:
    result = CliRunner().invoke(figures, ["client.nothing"])
    assert isinstance(result.exception, InputInvalid)


@pytest.mark.parametrize("option", ["--quick", "--repeat", "--name", "--network"])
def test_the_help_names_what_can_be_chosen(option: str) -> None:
    assert option in CliRunner().invoke(figures, ["--help"]).output


def names(*wanted: str) -> list[str]:
    return [group.name for group in chosen(wanted)]


def test_a_name_means_itself_and_all_that_begin_with_it() -> None:
    assert names("client.publish") == ["client.publish"]
    assert names("way") == ["way.publish", "way.memory", "way.attach", "way.kill"]
    assert names() == [group.name for group in GROUPS]
    groups = [
        "again",
        "client",
        "clients",
        "comfort",
        "gateway",
        "gateway-kills",
        "measure",
        "once",
        "ops",
        "order",
        "see",
        "way",
    ]
    assert set(names(*groups)) == set(names())


def test_a_name_that_means_nothing_tells_what_there_is() -> None:
    with pytest.raises(InputInvalid, match=r"client\.batch"):
        chosen(["client.pub"])


def test_names_are_distinct() -> None:
    assert len({group.name for group in GROUPS}) == len(GROUPS)
