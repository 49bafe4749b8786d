"""Settings of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from messagebus.errors import ConfigError
from messagebus_agent.config import AgentConfig
from ops.local.certificates import issue_missing

GOOD: dict[str, Any] = {
    "broker": "127.0.0.11:5672",
    "user": "admin",
    "password_file": "password",
    "http": "127.0.0.11:8081",
    "check": "127.0.0.11:8082",
    "list_file": "list.txt",
    "state_dir": "state",
    "token_file": "token",
}
CERTIFICATES = {"ca": "ca.pem", "cert": "mb1.pem", "key": "mb1.key"}


def test_what_must_be_given_is_enough() -> None:
    config = AgentConfig.from_mapping(GOOD)
    assert config.address.name == "127.0.0.11:5672"
    assert config.management == ""


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        AgentConfig.from_mapping({"broker": "127.0.0.11:5672", "epmd_port": "4369", "htp": "x"})
    text = str(told.value)
    for part in (
        "did you mean 'http'",
        "epmd_port: int wanted, not str",
        "state_dir: must be given",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("key", "value"),
    [("broker", "a b:1"), ("http", "host:0"), ("check", "host:x"), ("epmd_port", 0), ("user", "")],
)
def test_bad_values_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        AgentConfig.from_mapping(GOOD | {key: value})


def test_files_are_relative_to_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("".join(f'{key} = "{value}"\n' for key, value in GOOD.items()))
    (tmp_path / "password").write_text("geheim\n")
    config = AgentConfig.from_file(path)
    assert config.list_file == str(tmp_path / "list.txt")
    assert config.password.reveal() == "geheim"
    assert "geheim" not in repr(config)


@pytest.mark.parametrize("text", ["not toml", "\x00"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"agent\.toml"):
        AgentConfig.from_file(path)


def test_an_absent_or_empty_secret_is_named(tmp_path: Path) -> None:
    config = AgentConfig.from_mapping(GOOD | {"token_file": str(tmp_path / "token")})
    with pytest.raises(ConfigError, match="token_file"):
        _ = config.token
    (tmp_path / "token").write_text(" \n")
    with pytest.raises(ConfigError, match="empty"):
        _ = config.token


def test_certificates_are_checked_with_the_rest(tmp_path: Path) -> None:
    issue_missing(tmp_path, {"mb1": ("127.0.0.11",)})
    files = {f"tls_{end}_file": str(tmp_path / name) for end, name in CERTIFICATES.items()}
    assert AgentConfig.from_mapping({**GOOD, "tls": True, **files}).tls_files.faults() == []
    for wrong, told in (
        ({"tls": True}, "tls_cert_file: must be given"),
        ({**files}, "tls_ca_file: without effect while tls is off"),
        ({**files, "tls": True, "tls_key_file": "/nowhere"}, "tls_key_file /nowhere: No such file"),
        ({"tls": "true"}, "tls: bool wanted, not str"),
    ):
        with pytest.raises(ConfigError, match=told):
            AgentConfig.from_mapping({**GOOD, **wrong})


def test_relative_certificates_stand_beside_the_file(tmp_path: Path) -> None:
    issue_missing(tmp_path, {"mb1": ("127.0.0.11",)})
    lines = [f'{key} = "{value}"' for key, value in GOOD.items()]
    lines += ["tls = true", *(f'tls_{end}_file = "{name}"' for end, name in CERTIFICATES.items())]
    (tmp_path / "agent.toml").write_text("\n".join(lines))
    config = AgentConfig.from_file(tmp_path / "agent.toml")
    assert config.tls_cert_file == str(tmp_path / "mb1.pem")
