from __future__ import annotations

from pathlib import Path

import pytest

from inventory.cluster import Node, load
from messagebus.errors import ConfigError
from messagebus.tls import TlsFiles

GOOD = """
cluster = "prod"
list_file = "prod.txt"
token_file = "what else stands there is no concern of this kit"
[balancer]
amqp = "x"
[[brokers]]
name = "mb1"
agent = "10.0.1.1:8081"
node_list_file = "/var/lib/mb/list.txt"
"""


def test_what_matters_is_read(tmp_path: Path) -> None:
    path = tmp_path / "inventory.toml"
    path.write_text(GOOD)
    cluster = load(path)
    assert (cluster.name, cluster.list_file) == ("prod", tmp_path / "prod.txt")
    assert cluster.nodes == (
        Node(name="mb1", agent="10.0.1.1:8081", list_file=Path("/var/lib/mb/list.txt")),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cluster is missing or no text"),
        (GOOD.replace('agent = "10.0.1.1:8081"', "agent = 8081"), "agent is missing or no text"),
        (GOOD.replace("[[brokers]]", "[brokers]"), "see `python -m lb check`"),
        ("cluster", r"inventory\.toml"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "inventory.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml")


def test_where_agents_speak_tls_they_are_asked_with_certificates(tmp_path: Path) -> None:
    path = tmp_path / "inventory.toml"
    tls = '[tls]\nca_file = "ca.pem"\ncert_file = "o.pem"\nkey_file = "o.key"\n[[brokers]]'
    path.write_text(GOOD.replace("[[brokers]]", tls))
    (node,) = load(path).nodes
    assert node.agent_url == "https://10.0.1.1:8081"
    assert node.tls == TlsFiles(
        ca_file=f"{tmp_path}/ca.pem", cert_file=f"{tmp_path}/o.pem", key_file=f"{tmp_path}/o.key"
    )


HOSTS = """
[[hosts]]
name = "one"
ssh = "root@10.0.0.1:2222"
[[hosts]]
name = "two"
ssh = "10.0.0.2"
"""
MIRROR = """
[[mirrors]]
name = "mb1"
hosts = ["one", "two"]
"""


@pytest.mark.parametrize(
    ("before", "after", "hosts"),
    [
        ("", "", ()),
        ("", HOSTS, ()),
        ('supervisor = "systemd"', "", ("mb1.example",)),
        ("", 'host = "one"' + HOSTS, ("root@10.0.0.1:2222",)),
        ("", 'host = "one"' + HOSTS + MIRROR, ("root@10.0.0.1:2222", "10.0.0.2")),
    ],
)
def test_where_a_node_s_list_is(
    tmp_path: Path, before: str, after: str, hosts: tuple[str, ...]
) -> None:
    path = tmp_path / "inventory.toml"
    path.write_text(f'{before}\n{GOOD}address = "mb1.example:5672"\n{after}')
    assert load(path).nodes[0].hosts == hosts


def test_who_logs_in_without_being_root_is_known(tmp_path: Path) -> None:
    path = tmp_path / "inventory.toml"
    hosts = HOSTS.replace('ssh = "10.0.0.2"', 'ssh = "op@10.0.0.2"\nsudo = "yes"')
    path.write_text(f'{GOOD}host = "one"{hosts}{MIRROR}')
    assert load(path).nodes[0].sudo == {"op@10.0.0.2"}


def test_a_host_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "inventory.toml"
    path.write_text(f'{GOOD}host = "none"\n')
    with pytest.raises(ConfigError, match="'none'; see `python -m lb check`"):
        load(path)
