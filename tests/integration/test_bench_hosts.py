"""Load processes of a measured run on other hosts, over real SSH, which this machine stands for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.analysis.report import render_html, render_text
from bench.clients.rabbitmq import Standalone
from bench.commands import measured
from bench.errors import BenchError, InputInvalid
from bench.harness.parts import read_parts
from bench.harness.workers import Workers
from bench.load.profile import Profile
from bench.processes import Children
from inventory import shell
from ops.local.cluster import LocalCluster
from tests.support.fake_amqp import fake_rabbit
from tests.support.sshd import Sshd, ssh_server

SECOND = """
Host second
  HostName 127.0.0.1
  HostKeyAlias [127.0.0.1]:{port}
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Return two names of an SSH server."""
    with ssh_server(tmp_path / "sshd") as server:
        monkeypatch.setenv(shell.ENV_SSH_CONFIG, str(server.config))
        yield server.address, second(server)


def second(server: Sshd) -> str:
    user, _, place = server.address.partition("@")
    port = place.rpartition(":")[2]
    server.config.write_text(SECOND.format(port=port) + server.config.read_text())
    return f"{user}@second:{port}"


def profile(**more: object) -> Profile:
    values = {
        "name": "hosts",
        "load": {
            "schedule": {"kind": "constant", "rate_per_s": 100},
            "publishers": 2,
            "consumers": 1,
        },
        "messages": {"places": ["t/s"]},
        "time": {"warm_up_s": 0, "measured_s": 2, "drain_s": 20},
    }
    return Profile.from_values(values | more, "test")


def test_processes_elsewhere_meet_work_and_leave_their_parts(
    hosts: tuple[str, str], tmp_path: Path
) -> None:
    with fake_rabbit() as rabbit:
        for each in ("t", "t/s"):
            rabbit.hold(each)
        folder = tmp_path / "run"
        workers = Workers(profile(), folder, Children(folder / "logs"), hosts=hosts)
        try:
            workers.launch({"MESSAGEBUS_BROKER": rabbit.name})
            workers.meet()
            workers.wait_published()
            workers.end_consumers()
        finally:
            workers.stop()
        assert workers.without_part() == []
        assert sum(part.sent for part in read_parts(folder)) == rabbit.published == 200


def test_a_run_from_two_hosts_has_one_report_that_names_their_clocks(
    cluster: LocalCluster, hosts: tuple[str, str], tmp_path: Path
) -> None:
    result = measured(profile(), tmp_path / "run", Standalone(cluster), hosts)
    assert result.fates is not None
    assert result.fates.published == result.fates.confirmed == result.fates.delivered == 200
    first, other = result.about["environment"]["load_hosts"]
    assert {hosts[0], hosts[1]} == {first.partition(": ")[0], other.partition(": ")[0]}
    for page in (render_text(result, 10_000), render_html(result)):
        assert "ms during the run" in page


def test_a_host_that_is_not_there_ends_the_run_with_its_name(
    cluster: LocalCluster, hosts: tuple[str, str], tmp_path: Path
) -> None:
    with pytest.raises(BenchError, match=r"nobody@second:1: the connection has ended: .*refused"):
        measured(profile(), tmp_path / "run", Standalone(cluster), ("nobody@second:1",))


def test_rows_of_every_message_are_of_this_host_alone(tmp_path: Path) -> None:
    wanted = profile(events=True)
    with pytest.raises(InputInvalid, match="this host alone"):
        measured(wanted, tmp_path, _Nothing(), ("a",))  # type: ignore[arg-type]


class _Nothing:
    def declare(self, profile: Profile) -> None: ...
