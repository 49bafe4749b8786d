"""docs/operations/first-cluster.md: its inventory, secrets and keys, and its commands that need no host."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from inventory.inventory import _TABLES, ENV_PATH, Inventory, load, parse
from messagebus.errors import ConfigError
from ops.provision.changes import Observed, changes
from ops.provision.hosts import read_secrets
from ops.provision.wanted import wanted_host
from tests.support.documents import ROOT, blocks_of, files_of

PAGE = ROOT / "docs" / "operations" / "first-cluster.md"
WITHIN_S = 120
# Values of a loaded inventory that no file has.
NOT_IN_FILES = {"probe_password", "digest"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that an operator has who followed the page: made by its commands, with its inventory."""
    home = tmp_path_factory.mktemp("home")
    mine = [each.text for each in blocks_of(PAGE) if "elsewhere" in each.marks]
    (shell, secrets, _render) = mine
    subprocess.run(["bash", "-euc", shell + secrets], cwd=home, check=True, timeout=WITHIN_S)
    made = home / "prod"
    for name, text in files_of(PAGE).items():
        (made / name).write_text(text)
    return made


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, ENV_PATH: str(folder / "inventory.toml")},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def test_the_inventory_of_the_page_is_whole_and_its_secrets_are_their_owners_alone(
    folder: Path,
) -> None:
    inventory = load(folder / "inventory.toml")
    assert [node.name for node in inventory.brokers] == ["mb1", "mb2", "mb3"]
    assert len({*read_secrets(inventory).values()}) == 5
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in read_secrets(inventory):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_each_key_of_the_pages_inventory_that_is_required_is_missed_where_it_is_left_out(
    folder: Path,
) -> None:
    values = tomllib.loads(files_of(PAGE)["inventory.toml"])
    required = {key for key, default, _ in rows("The top of the file") if default == "required"}
    for key in required - {"balancers"}:
        with pytest.raises(ConfigError, match=f"{key}: missing"):
            parse({name: each for name, each in values.items() if name != key}, base=folder)


def test_the_inventory_is_rendered_without_hosts_and_a_dry_run_stops_at_the_first(
    folder: Path,
) -> None:
    rendered = ran(folder, "lb", "render")
    assert rendered.returncode == 0, rendered.stderr
    assert "server mb3 10.0.0.13:5672" in rendered.stdout
    near = folder / "near.toml"
    near.write_text((folder / "inventory.toml").read_text().replace("10.0.0.", "127.1.0."))
    planned = ran(folder, "ops", "bootstrap", "--dry-run", "--inventory", str(near))
    assert planned.returncode == 0, planned.stderr
    assert "start broker mb3" in planned.stdout
    assert not (folder / "consumer-list.txt").exists()
    nobody = ran(folder, "ops", "provision", "--dry-run", "--inventory", str(near))
    assert "front1: no SSH" in nobody.stderr


@pytest.mark.parametrize("host", ["db1", "front1"])
def test_the_page_shows_the_changes_of_a_new_host(folder: Path, host: str) -> None:
    inventory = load(folder / "inventory.toml")
    wanted = wanted_host(inventory, host, read_secrets(inventory), "c67f1d0e2a9b4835")
    printed = "".join(f"{host}: {each.what}\n" for each in changes(wanted, Observed()))
    shown = [each.text for each in blocks_of(PAGE) if each.text.startswith(f"{host}: ")]
    assert shown == [printed]


def rows(title: str) -> list[tuple[str, str, str]]:
    """Return key, default and meaning of the rows of one table of keys."""
    _, _, text = PAGE.read_text().partition("## All keys of the inventory")
    _, _, table = text.partition(f"**{title}**")
    table = re.split(r"^\*\*", table, flags=re.M)[0]
    return re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", table, re.M)


@pytest.mark.parametrize(
    ("title", "table"),
    [
        ("The top of the file", Inventory),
        ("`[balancer]`, and each `[[balancers]]`", _TABLES["balancers"]),
        ("`[balancer.timers]`", _TABLES["timers"]),
        *((f"`[[{name}]]`", _TABLES[name]) for name in ("hosts", "brokers", "users")),
        *((f"`[[{name}]]`", _TABLES[name]) for name in ("mirrors", "gateways")),
        *((f"`[{name}]`", _TABLES[name]) for name in ("provision", "tls")),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_table_of_keys_has_every_key_and_its_default(title: str, table: Any) -> None:
    fields = [each for each in dataclasses.fields(table) if each.name not in NOT_IN_FILES]
    shown = {key: default for key, default, _ in rows(title)}
    assert {*shown} == {each.name for each in fields}
    for field in fields:
        is_required = field.default is field.default_factory is dataclasses.MISSING
        assert (shown[field.name] == "required") == is_required, field.name
        if field.default and type(field.default) in (int, float):
            assert shown[field.name] == f"`{field.default}`", field.name
