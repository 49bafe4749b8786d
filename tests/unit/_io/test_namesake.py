import tomllib
from pathlib import Path

import pytest

from messagebus._io.amqp_wire import OURS, SUMMARY, namesake

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    namesake.cache_clear()


def installed(folder: Path, summary: str) -> None:
    info = folder / "messagebus-0.16.1.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: messagebus", "Version: 0.16.1", f"Summary: {summary}"]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


def test_another_projects_distribution_of_our_packages_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "Python messagebus")
    monkeypatch.syspath_prepend(tmp_path)
    told = namesake()
    assert "distribution 'messagebus' 0.16.1 is installed here" in told
    assert f"pip install {OURS}" in told
    assert "\n" not in told


def test_our_own_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, SUMMARY)
    monkeypatch.syspath_prepend(tmp_path)
    assert namesake() == ""


def test_what_it_goes_by_is_what_the_distribution_says_of_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["description"]) == (OURS, SUMMARY)
