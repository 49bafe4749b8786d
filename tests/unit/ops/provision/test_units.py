"""Units, programs and compose files of a host, and the command that writes them."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import yaml

from inventory.inventory import parse
from messagebus.services.agent import AgentConfig
from messagebus.services.gateway.config import GatewayConfig
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.people import NOBODY, Logins
from ops.__main__ import cli, main
from ops.errors import HostUnreachable, OpsError
from ops.local.files import inventory_toml
from ops.local.layout import Layout
from ops.provision import compose
from ops.provision import hosts as provision_cli
from ops.provision import program as remote_program
from ops.provision.changes import Change
from ops.provision.program import Program, pack, unpack_command
from ops.provision.units import balancer_files, worker_files
from ops.provision.unpack import unpack
from ops.run import command
from tests.support.balancer import BASE, inventory, mirrored_values
from tests.support.debian import program
from tests.support.systemd import exposure_fault, verify

DEBIAN = Path("/lib/systemd/system/haproxy.service")
# Exposure by systemd-analyze security, 0 to 100: each unit's own here, and a little more.
EXPOSURE_MAX = {
    "messagebus-balancer-state.service": 15,
    "messagebus-worker@.service": 20,
    "haproxy.service": 40,
}
HOST = dataclasses.replace(
    inventory().balancer,
    config=Path("/etc/haproxy/haproxy.cfg"),
    socket=Path("/run/haproxy/admin.sock"),
    state_file=Path("/var/lib/haproxy/messagebus.state"),
    master_pid_file=Path("/run/haproxy.pid"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All units below a folder, with Debian's own of HAProxy beside them."""
    units = {**balancer_files(inventory(), HOST), **worker_files(Path("/usr/bin/true"))}
    for path, text in units.items():
        file = tmp_path / path.name
        if path.parent.name.endswith(".d"):
            file = tmp_path / path.parent.name / path.name
            file.parent.mkdir()
        file.write_text(text)
    (tmp_path / DEBIAN.name).write_text(DEBIAN.read_text())
    return tmp_path


def test_systemd_has_nothing_against_them(folder: Path) -> None:
    names = ("messagebus-balancer-state.service", "haproxy.service", "messagebus-worker@x.service")
    assert verify(*(folder / name for name in names)) == ""


@pytest.mark.parametrize("name", EXPOSURE_MAX)
def test_what_a_unit_may_do_is_little(folder: Path, name: str) -> None:
    assert exposure_fault(folder / name, EXPOSURE_MAX[name]) == ""


def test_a_keeper_that_fails_does_not_keep_haproxy_from_starting(folder: Path) -> None:
    text = (folder / "haproxy.service.d" / "messagebus.conf").read_text()
    (before,) = re.findall(r"^ExecStartPre=(\S+) .* --config (\S+) ", text, re.MULTILINE)
    assert before == ("-+/usr/bin/python3", str(HOST.config))


def test_a_worker_is_given_longer_than_its_grace(folder: Path) -> None:
    text = (folder / "messagebus-worker@.service").read_text()
    grace, stop = (re.search(rf"{key}[= ](\d+)", text) for key in ("--grace-s", "TimeoutStopSec"))
    assert grace is not None
    assert stop is not None
    assert int(stop[1]) > int(grace[1])


def test_haproxy_may_open_two_files_for_each_connection() -> None:
    many = dataclasses.replace(HOST, sessions_max=50_000)
    texts = balancer_files(inventory(), many).values()
    assert any("LimitNOFILE=101000" in text for text in texts)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(inventory_toml(layout))
    return layout.inventory


def test_a_balancer_s_host_gets_its_units_and_the_keeper(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["units", "--inventory", str(file), "--out", str(out)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert all(path.read_text() for path in written)
    assert [str(path.relative_to(out)) for path in written] == [
        "etc/systemd/system/haproxy.service.d/messagebus.conf",
        "etc/systemd/system/messagebus-balancer-state.service",
        "usr/local/lib/messagebus/keeper.py",
    ]


def test_a_worker_s_host_needs_no_inventory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["units", "--worker", "/opt/shop/bin/messagebus"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# ---- /etc/systemd/system/messagebus-worker@.service\n")
    assert "ExecStart=/opt/shop/bin/messagebus worker ${APP} " in shown


def test_an_unknown_balancer_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["units", "--inventory", str(file), "--balancer", "haprox"]) == 2
    assert "did you mean 'haproxy'?" in capsys.readouterr().err


@pytest.fixture(scope="module")
def packed() -> Program:
    return pack()


def test_the_same_files_have_the_same_digest(packed: Program) -> None:
    assert pack().digest == packed.digest


def test_all_that_the_agent_needs_is_in_it_and_nothing_of_the_kits(packed: Program) -> None:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed.text))) as tar:
        folders = {Path(name).parts[0] for name in tar.getnames()}
    assert {"messagebus", "pika", "httpx", "httpcore", "starlette", "uvicorn"} <= folders
    assert not folders & {"ops", "lb", "inventory", "tests", "fabric", ".."}


def test_a_library_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_program, "_name", lambda _text: "no-such-library")
    with pytest.raises(OpsError, match="no-such-library is needed"):
        pack()


def test_the_archive_is_in_no_argv(packed: Program) -> None:
    assert all(len(word) < 5_000 for word in unpack_command(packed))
    assert unpack_command(packed)[-2:] == ("/opt/messagebus", packed.digest)


def test_what_was_packed_runs_where_nothing_is_installed(packed: Program, tmp_path: Path) -> None:
    unpack(tmp_path, "before", packed.text)
    (tmp_path / f"{packed.digest}.part").mkdir()  # of a run that was ended
    for _ in range(2):
        unpack(tmp_path, packed.digest, packed.text)
    assert (tmp_path / "current").readlink() == Path(packed.digest)
    helped = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "messagebus", "agent", "--help"],
        cwd="/",
        env={"PYTHONPATH": str(tmp_path / "current")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--config" in helped.stdout


ROOT = Path(__file__).resolve().parents[4]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
WITHIN_S = 60


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compose") / "bus"
    assert cli.run(["compose", str(folder), "--brokers", "2"], prog_name="ops") == 0
    return folder


def checked(*argv: str | Path) -> str:
    done = subprocess.run(
        [str(each) for each in argv], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_file_is_a_compose_file(out: Path) -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    checked(sys.executable, "-m", "check_jsonschema", *schema, out / "compose.yaml")


def test_every_file_that_a_service_mounts_is_there(out: Path) -> None:
    told = json.loads((out / "compose.yaml").read_text())
    mounted = [
        mount.split(":")[0]
        for service in told["services"].values()
        for mount in service.get("volumes", ())
    ]
    here = [each for each in mounted if each.startswith("./")]
    assert here
    assert [each for each in here if not (out / each).exists()] == []
    assert set(mounted) - set(here) == set(told["volumes"])
    assert (out / told["secrets"]["bus"]["file"]).read_text().strip()


def test_the_balancer_accepts_its_configuration(out: Path, tmp_path: Path) -> None:
    # In a network of containers these names mean something.
    text = re.sub(r"\bmb(\d):", r"127.0.0.\1:", (out / "lb" / "haproxy.cfg").read_text())
    (tmp_path / "haproxy.cfg").write_text(text)
    checked(program("haproxy", package="haproxy"), "-c", "-f", tmp_path / "haproxy.cfg")


def test_each_service_accepts_its_settings(out: Path) -> None:
    for name in ("mb1", "mb2"):
        agent = AgentConfig.from_file(out / name / "messagebus" / "agent.toml")
        assert agent.broker == f"{name}:5672"
        assert json.loads((out / name / "state" / "topology.json").read_text())
    for name in ("gateway", "monitor"):
        text = (out / f"{name}.toml").read_text().replace("/run/secrets/", f"{out}/secrets/")
        (out / f"{name}-here.toml").write_text(text)
    assert GatewayConfig.from_file(out / "gateway-here.toml").tokens_file
    assert MonitorConfig.from_file(out / "monitor-here.toml").people


def test_prometheus_accepts_its_configuration(out: Path) -> None:
    promtool = program("promtool", package="prometheus")
    checked(promtool, "check", "config", out / "prometheus" / "prometheus.yml")


def test_passwords_are_new_each_time_and_shut_away(out: Path, tmp_path: Path) -> None:
    assert cli.run(["compose", str(tmp_path / "other")], prog_name="ops") == 0
    for secret in (out / "secrets").iterdir():
        assert secret.read_text() != (tmp_path / "other" / "secrets" / secret.name).read_text()
    assert out.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_was_open_is_shut_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bus", "here"):
        (tmp_path / name).mkdir(mode=0o755)
    monkeypatch.chdir(tmp_path / "here")
    assert cli.run(["compose", "../bus", "--brokers", "1"], prog_name="ops") == 0
    assert (tmp_path / "bus").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "bus" / "secrets" / "token").read_text().strip()


@pytest.mark.parametrize("exists", [False, True], ids=["new", "empty"])
def test_a_failure_leaves_no_secrets_behind_and_the_next_try_is_right(
    tmp_path: Path, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bus"
    if exists:
        folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(compose, "genesis", lambda _folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cli.run(["compose", str(folder), "--brokers", "1"], prog_name="ops")
    assert folder.exists() == exists
    assert list(tmp_path.rglob("*")) == [folder] * exists
    assert cli.run(["compose", str(folder), "--brokers", "1"], prog_name="ops") == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own a folder as somebody else")
def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bus"
    folder.mkdir()
    os.chown(folder, 65_534, 65_534)
    assert cli.run(["compose", str(folder)], prog_name="ops") == 2
    assert "belongs to another user" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_images_are_of_one_release_and_grafana_has_a_password_of_its_own(out: Path) -> None:
    told = json.loads((out / "compose.yaml").read_text())
    images = {each["image"] for each in told["services"].values()} - {"messagebus"}
    assert images
    assert [each for each in images if not re.search(r":v?\d+\.\d+\.\d+(-\w+)?$", each)] == []
    grafana = told["services"]["grafana"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana"
    assert (out / told["secrets"]["grafana"]["file"]).read_text().strip()


def test_a_folder_with_something_in_it_is_left_alone(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (out / "secrets" / "bus").read_text()
    assert cli.run(["compose", str(out)], prog_name="ops") == 2
    assert "not empty" in capsys.readouterr().err
    assert (out / "secrets" / "bus").read_text() == before


def test_the_base_of_kustomize_is_valid_for_kubernetes() -> None:
    base = yaml.safe_load((KUSTOMIZE / "kustomization.yaml").read_text())
    files = [KUSTOMIZE / name for name in base["resources"]]
    validate = (sys.executable, "-m", "kubernetes_validate", "--strict")
    checked(*validate, *files)
    made = {each["name"] for each in base["configMapGenerator"]}
    for each in base["configMapGenerator"]:
        for name in [*each.get("files", ()), *each.get("envs", ())]:
            assert (KUSTOMIZE / name).is_file()
    used = set(re.findall(r"(?:configMap|configMapRef): \{name: ([\w-]+)\}", _text(files)))
    assert used == made
    left = {path.name for path in KUSTOMIZE.iterdir()} - {path.name for path in files}
    assert left == {
        "kustomization.yaml",
        "messagebus.env",
        "gateway.toml",
        "tokens.toml",
        "monitor.toml",
    }


def test_each_service_of_the_base_is_reached_by_named_peers_alone() -> None:
    policies = [*yaml.safe_load_all((KUSTOMIZE / "network.yaml").read_text())]
    shut = {
        each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for each in policies
    }
    assert shut == {"gateway", "monitor", "worker"}
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        for rule in policy["spec"]["ingress"]:
            assert rule["ports"]
            assert rule["from"]
            for peer in rule["from"]:
                assert all(selector["matchLabels"] for selector in peer.values())


def test_the_base_trusts_nobody_until_it_is_edited(tmp_path: Path) -> None:
    monitor = settings_of_the_base(tmp_path, "monitor.toml", MonitorConfig.from_file)
    assert monitor.has_logins, "it is not open to everybody"
    logins = Logins(monitor.people, monitor.tokens, monitor.proxy)
    for address in ("10.0.0.1", "127.0.0.1", "192.168.0.1", "::1"):
        assert logins.by_proxy(address, lambda _header: ["ann"]) is None
    assert logins.anybody() == NOBODY
    gateway = settings_of_the_base(tmp_path, "gateway.toml", GatewayConfig.from_file)
    assert (gateway.anonymous, gateway.bus_login, gateway.tls_client_ca_file) == ("", False, "")
    digests = tomllib.loads((KUSTOMIZE / "tokens.toml").read_text())["token"]
    assert {each["sha256"] for each in digests} == {"0" * 64}, "no token has this digest"


T = TypeVar("T")


def settings_of_the_base(folder: Path, name: str, read: Callable[[Path], T]) -> T:
    """Return settings as the container reads them."""
    (folder / "password").write_text("x")
    text = (KUSTOMIZE / name).read_text()
    (folder / name).write_text(
        text.replace("/run/secrets/messagebus/password", str(folder / "password"))
    )
    return read(folder / name)


def _text(files: list[Path]) -> str:
    return "".join(path.read_text() for path in files)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The changes that were made; hosts a1 and a2 need them, b1 does not, b2 is away."""
    done: list[str] = []
    inventory = parse(mirrored_values(), base=BASE)

    @contextmanager
    def root_of(_inventory: object, name: str) -> Iterator[str]:
        if name == "b2":
            raise HostUnreachable(name, "No route to host")
        yield name

    def make(wants: list[Change], root: str, _program: object, **_say: Any) -> None:
        done.extend(f"{root}: {change.what}" for change in wants)

    replaced: dict[str, Any] = {
        "root_of": root_of,
        "make": make,
        "pack": lambda: SimpleNamespace(digest="d"),
        "read_secrets": lambda _inventory: {},
        "wanted_host": lambda _inventory, name, *_rest: name,
        "look": lambda _wanted, root: root,
        "obstacles": lambda _name, _seen: [],
        "changes": lambda name, _seen: [] if name == "b1" else [Change(what="install x")],
        "restart_wanted": lambda wants, _seen: bool(wants),
        "check_room": lambda *_args, **_more: None,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(provision_cli, name, function)
    for module in (provision_cli, command):
        monkeypatch.setattr(module, "load", lambda _file: inventory)
    return done


def provision(folder: Path, *words: str) -> int:
    return main(["provision", *words, "--inventory", str(folder / "inventory.toml")])


def test_one_host_that_is_away_keeps_all_as_they_are(
    changed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert provision(tmp_path, "a1", "b2", "--yes") == 6
    assert changed == []
    assert capsys.readouterr().err == "ops: b2: no SSH: No route to host\n"


def test_the_lock_of_the_cluster_is_held_on_balancers_hosts_too_while_hosts_are_looked_at_and_changed(
    changed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []

    @contextmanager
    def everywhere(_file: Path, _inventory: Path, what: str) -> Iterator[None]:
        held.append(what)
        yield
        assert changed == ["a1: install x"]
        held.remove(what)

    monkeypatch.setattr("ops.run.command.cluster_lock", everywhere)

    def look(_wanted: object, root: str) -> str:
        assert held == ["provision a1"]
        return root

    monkeypatch.setattr(provision_cli, "look", look)
    assert provision(tmp_path, "a1", "--yes") == 0
    assert held == []


def test_what_is_right_is_left_alone_and_the_rest_is_told_and_done(
    changed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert provision(tmp_path, "a1", "b1", "a2", "--dry-run") == 0
    assert changed == []
    planned = ["a1: install x", "b1: nothing to change", "a2: install x"]
    assert capsys.readouterr().out.splitlines() == planned
    assert provision(tmp_path, "a1", "b1", "a2", "--yes") == 0
    assert changed == ["a1: install x", "a2: install x"]
    assert "a2: its broker reads some of this when it starts" in capsys.readouterr().out
