"""The documents' statements about the tests are true."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from docs import guarantees
from messagebus import BusConfig, ConsumerConfig, PublisherConfig
from ops.local.certificates import issue_missing

ROOT = Path(__file__).resolve().parents[2]


def test_every_promise_has_its_tests_and_the_page_says_so() -> None:
    groups, tests = guarantees.promises(), guarantees.marked()
    keys = [key for texts in groups.values() for key in texts]
    assert len(keys) > 90
    assert sorted(tests) == sorted(keys)
    assert guarantees.page(groups, tests) == guarantees.PAGE.read_text()


def test_every_invariant_of_the_design_has_its_promise() -> None:
    """Numbered as in the design; 6 to 9 come with redundant publishing."""
    texts = [text for group in guarantees.promises().values() for text in group.values()]
    shown = {int(n) for text in texts for n in re.findall(r"\(invariant (\d+)\)", text)}
    assert shown == set(range(1, 23)) - {6, 7, 8, 9}


def test_every_environment_variable_of_clients_is_in_the_documents() -> None:
    told = "".join((ROOT / name).read_text() for name in ("README.md", "docs/WIRE.md"))
    for name in ("MESSAGEBUS_BROKER", "MESSAGEBUS_LIST_URL", "MESSAGEBUS_USER"):
        assert name in told


def test_every_setting_has_its_variable_and_default_in_the_how_to() -> None:
    text = (ROOT / "docs" / "howto" / "settings.md").read_text()
    told = set(re.findall(r"`(MESSAGEBUS_[A-Z_]+)`", text))
    kinds: dict[str, Any] = {
        "": BusConfig(),
        "PUBLISHER_": PublisherConfig(),
        "CONSUMER_": ConsumerConfig(),
    }
    wanted = {
        f"MESSAGEBUS_{begin}{field.name.upper()}": getattr(config, field.name)
        for begin, config in kinds.items()
        for field in dataclasses.fields(config)
    }
    wanted["MESSAGEBUS_LIST_URL"] = wanted.pop("MESSAGEBUS_LIST_URLS")
    assert wanted.keys() - told == set()
    for name, default in wanted.items():
        if isinstance(default, int):
            (line,) = [line for line in text.splitlines() if f"`{name}`" in line]
            assert f"`{str(default).lower()}`" in line, name


def test_the_example_of_settings_is_good(tmp_path: Path) -> None:
    issue_missing(tmp_path, {"orders": ()})
    for name in ("user", "password"):
        (tmp_path / name).write_text(f"{name} of an example")
    text = (ROOT / "docs" / "config" / "messagebus.toml").read_text()
    path = tmp_path / "messagebus.toml"
    path.write_text(text.replace("/etc/messagebus", str(tmp_path)))
    bus = BusConfig.from_file(path)
    assert (bus.tls, bus.current_user()) == (True, "user of an example")
    assert PublisherConfig.from_file(path).batch["queue:jobs"].linger_ms == 5
    assert ConsumerConfig.from_file(path).prefetch == 100


def test_links_between_documents_lead_somewhere() -> None:
    for page in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
