"""Promise: user and password may change while clients run; nothing is lost, and no account is locked."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from messagebus import BusConfig, LoginRefused, Publisher
from messagebus.files import write_whole
from ops.local import secrets
from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import bus_config, close_connections, direct
from tests.support.leaks import LEAKS
from tests.support.load import Consuming, Load, consuming, publishing
from tests.support.playbooks import ops

READY_WITHIN_S = 60.0
# A refused login is tried again after at most half a minute, plus what the file was late.
BACK_WITHIN_S = 60.0
WATCHED_S = 15.0
# Within WATCHED_S one link tries after 0, 1, 3 and 7 s at the earliest half of that: six times at most.
TRIES_MAX = 6
REGISTRATION_TRIES_MAX = 3
REFUSED_LINE = re.compile(r"login refused|ACCESS_REFUSED.*[Ll]ogin|invalid credentials")


@pytest.fixture(scope="module")
def own(make_cluster: MakeCluster) -> LocalCluster:
    """A cluster of its own: its passwords are changed."""
    return make_cluster(2)


@pytest.fixture
def login(own: LocalCluster, tmp_path: Path) -> Login:
    return Login(own, tmp_path)


class Login:
    """A user of an application, with the files that hold the login."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.user_file, self.password_file = folder / "user", folder / "password"

    def on_brokers(self, user: str, password: str) -> None:
        """Give this user this password on the brokers."""
        LEAKS.remember(password)
        for name in self.cluster.names:
            with self.cluster.management(name) as management:
                body = {"password": password, "tags": "monitoring"}
                management.put(f"/api/users/{user}", json=body).raise_for_status()
                rights = management.get("/api/permissions/%2F/bus").raise_for_status().json()
                management.put(f"/api/permissions/%2F/{user}", json=rights).raise_for_status()

    def off_brokers(self, user: str) -> None:
        for name in self.cluster.names:
            with self.cluster.management(name) as management:
                management.delete(f"/api/users/{user}").raise_for_status()

    def in_files(self, user: str, password: str) -> None:
        LEAKS.remember(password)
        write_whole(self.user_file, user + "\n")
        write_whole(self.password_file, password + "\n")

    def bus(self, client_id: str) -> BusConfig:
        return bus_config(
            self.cluster,
            user_file=str(self.user_file),
            password_file=str(self.password_file),
            client_id=client_id,
        )

    def hang_up(self, client_id: str) -> None:
        for name in self.cluster.names:
            close_connections(self.cluster, name, client_id)

    def refusals(self) -> int:
        """Count the logins that the brokers have refused so far, by their own logs."""
        logs = [(node.log_dir / "broker.log") for node in self.cluster.layout.nodes]
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        return sum(bool(REFUSED_LINE.search(line)) for line in lines)


def flows(load: Load, work: Consuming) -> None:
    """Check that messages confirmed from now on arrive, too."""
    since_ns = time.monotonic_ns()
    eventually(
        lambda: load.confirmed_ids(since_ns=since_ns) & set(work.counts()),
        within_s=BACK_WITHIN_S,
        what="messages flow again",
    )
    eventually(work.consumer.keep_alive, within_s=BACK_WITHIN_S, what="attached to all brokers")


@pytest.mark.guarantee("credentials-change-under-load")
def test_a_password_changes_while_messages_flow(login: Login) -> None:
    login.on_brokers("rotating", "password-one-5512")
    login.in_files("rotating", "password-one-5512")
    bus = login.bus("rotating-password")
    with consuming(bus, "orders", "billing") as work:
        with publishing(bus, "orders") as load:
            flows(load, work)
            login.on_brokers("rotating", "password-two-7734")
            login.in_files("rotating", "password-two-7734")
            login.hang_up(bus.client_id)
            flows(load, work)
            # Also when the brokers are first, and the file is late.
            login.on_brokers("rotating", "password-three-9956")

            def is_refused() -> bool:
                # RabbitMQ's management may list a connection some seconds after it was opened.
                login.hang_up(bus.client_id)
                return not work.consumer.keep_alive()

            eventually(is_refused, within_s=READY_WITHIN_S)
            login.in_files("rotating", "password-three-9956")
            flows(load, work)
        assert work.wait_for(load.confirmed_ids()) == set()
    assert load.links_lost > 0


@pytest.mark.guarantee("credentials-change-under-load")
def test_operators_change_a_password_by_one_command_and_no_restart_brings_the_old_one_back(
    own: LocalCluster,
) -> None:
    file = Path(own.layout.secret(secrets.BUS))
    old = secrets.read(file)
    bus = bus_config(own, password_file=str(file), client_id="commanded")
    with consuming(bus, "orders", "commanded") as work:
        with publishing(bus, "orders") as load:
            flows(load, work)
            changed = ops(own, "users", "password", "bus", "--yes")
            assert changed.returncode == 0, changed.stderr
            new = secrets.read(file)
            assert new.reveal() != old.reveal()
            LEAKS.remember(new.reveal())
            for name in own.names:
                close_connections(own, name, bus.client_id)
            flows(load, work)
            own.kill("mb1")
            own.start("mb1")
            own.wait_ready()
            with pytest.raises(LoginRefused):
                Publisher(direct(own, "mb1", password=old)).start(require="one")
            flows(load, work)
        assert work.wait_for(load.confirmed_ids()) == set()


@pytest.mark.guarantee("credentials-change-under-load")
def test_a_user_changes_with_the_password(login: Login) -> None:
    login.on_brokers("blue", "password-blue-1123")
    login.in_files("blue", "password-blue-1123")
    bus = login.bus("rotating-user")
    with consuming(bus, "queue:jobs") as work:
        with publishing(bus, "queue:jobs") as load:
            flows(load, work)
            login.on_brokers("green", "password-green-3345")
            login.in_files("green", "password-green-3345")
            login.hang_up(bus.client_id)
            flows(load, work)
            login.off_brokers("blue")
            flows(load, work)
        assert work.wait_for(load.confirmed_ids()) == set()


@pytest.mark.guarantee("wrong-login")
def test_a_wrong_password_is_told_at_once_and_tried_once(login: Login) -> None:
    login.on_brokers("known", "password-known-8812")
    login.in_files("known", "password-wrong-0041")
    before = login.refusals()
    with pytest.raises(LoginRefused) as raised:
        Publisher(login.bus("wrong")).start(require="one", timeout_s=READY_WITHIN_S)
    assert "password-wrong" not in str(raised.value)
    assert 1 <= eventually(lambda: login.refusals() - before, within_s=READY_WITHIN_S) <= 2


@pytest.mark.guarantee("credentials-change-under-load", "wrong-login")
def test_a_running_client_tries_a_wrong_password_slowly(login: Login) -> None:
    login.on_brokers("slow", "password-old-2290")
    login.in_files("slow", "password-old-2290")
    bus = login.bus("slow-client")
    with consuming(bus, "queue:slow") as work:
        with publishing(bus, "queue:slow", publishers=1) as load:
            flows(load, work)
            before = login.refusals()
            login.on_brokers("slow", "password-new-4467")
            login.hang_up(bus.client_id)
            # A minute later an operator would notice; a quarter of it shows the pace.
            time.sleep(WATCHED_S)
            tries = login.refusals() - before
            links = 1 + len(login.cluster.names)
            assert links <= tries <= links * TRIES_MAX * FACTOR + REGISTRATION_TRIES_MAX
            login.in_files("slow", "password-new-4467")
            flows(load, work)
        assert work.wait_for(load.confirmed_ids()) == set()
