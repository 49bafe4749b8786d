"""`ops compose`, and the base of kustomize: checked by their schemas and by the programs that read them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from messagebus_agent import AgentConfig
from messagebus_gateway.config import GatewayConfig
from messagebus_monitor.config import MonitorConfig
from ops.__main__ import cli
from tests.support.debian import program

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
    text = re.sub(r"agent-addr mb(\d)", r"agent-addr 127.0.0.\1", text)
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


def test_the_settings_of_the_base_are_accepted(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("x")
    for name, read in (
        ("gateway.toml", GatewayConfig.from_file),
        ("monitor.toml", MonitorConfig.from_file),
    ):
        text = (KUSTOMIZE / name).read_text()
        (tmp_path / name).write_text(
            text.replace("/run/secrets/messagebus/password", str(password))
        )
        assert read(tmp_path / name)


def _text(files: list[Path]) -> str:
    return "".join(path.read_text() for path in files)
