"""The image and the Debian package, built without a daemon on a root folder of Debian, and started."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import free_port
from inventory.inventory import parse
from messagebus import Secret
from ops.dist import main as make_dist
from ops.local import roots
from ops.provision.wanted import GATEWAY_UNIT, secret_files, wanted_host

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S, TRIES = 300, 5
ENDED = "ended with "
BASE, IMAGE = "localhost/base", "localhost/messagebus"
# Of this host: where pip finds its registry, and whom it trusts.
GIVEN = ("/etc/pip.conf", "/etc/ssl/certs")


class Buildah:
    """Images in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._storage = ("--root", str(folder / "images"), "--runroot", str(folder / "run"))

    def __call__(self, *words: str | Path) -> str:
        argv = ["buildah", *self._storage, *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def build(self, source: Path, *words: str | Path) -> None:
        volumes = [f"--volume={path}:{path}:ro" for path in GIVEN if Path(path).exists()]
        file = source / "deploy" / "Containerfile"
        self(
            *("bud", "--isolation", "chroot", "--layers", f"--build-arg=BASE={BASE}"),
            *(*volumes, *words, "-f", file, source),
        )

    def run(self, container: str, *argv: str, ok: bool = True) -> str:
        """Run a command, and return what it said. buildah may lose that of one that ends at once: again."""
        shell = ("sh", "-c", f'"$@" 2>&1; echo "{ENDED}$?"', "sh")
        for _ in range(TRIES):
            told, mark, code = self(
                "run", "--isolation", "chroot", container, "--", *shell, *argv
            ).rpartition(ENDED)
            if mark:
                assert not ok or code.split()[0] == "0", told
                return told
        raise AssertionError(f"nothing was heard of {argv}")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `make dist` makes, and the files of images."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dist", str(folder / "dist")])
        make_dist()
    return folder


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Iterator[Buildah]:
    folder = tmp_path_factory.mktemp("buildah")
    run = Buildah(folder)
    container = run("from", "scratch").split()[-1]
    run("add", "-q", container, roots.make("trixie", say=print), "/")
    run("commit", "-q", container, BASE)
    run.build(source, "-t", IMAGE)
    yield run
    run("rm", "--all")
    run("rmi", "--all", "--force")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def installed(buildah: Buildah, source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A container of Debian with the package."""
    tmp_path = tmp_path_factory.mktemp("deb")
    buildah.build(source, "--target", "deb", "--output", f"type=local,dest={tmp_path}")
    (package,) = tmp_path.glob("messagebus_0.1.0_*.deb")
    container = buildah("from", BASE).split()[-1]
    buildah("copy", "-q", container, package, "/messagebus.deb")
    # What it depends on beside Python is in no root folder of the tests.
    install = "dpkg --force-depends -i /messagebus.deb"
    script = "adduser() { useradd --system --user-group messagebus; }; export -f adduser; "
    buildah.run(container, "bash", "-c", script + install)
    return container


def test_the_image_runs_each_service_as_nobody_in_particular(buildah: Buildah) -> None:
    container = buildah("from", IMAGE).split()[-1]
    assert "version 0.1.0" in buildah.run(container, "messagebus", "--version")
    assert "uid=10001" in buildah.run(container, "id")
    for service in ("agent", "gateway", "monitor"):
        told = buildah.run(container, "messagebus", service, "--config", "/absent.toml", ok=False)
        assert "/absent.toml" in told
        assert "Traceback" not in told
        assert "pip install" not in told


# Ports of its service and of /livez are of this host: the root folder shares its network.
INVENTORY = """
cluster = "prod"
list_file = "prod.txt"
token_file = "token"
admin_user = "admin"
admin_password_file = "admin"
supervisor = "systemd"
[balancer]
host = "lb1"
amqp = "127.0.0.1:1"
list = "127.0.0.1:1"
stats = "127.0.0.1:1"
config = "/etc/haproxy/haproxy.cfg"
socket = "/run/haproxy/admin.sock"
state_file = "/var/lib/haproxy/state"
master_pid_file = "/run/haproxy.pid"
probe_user = "probe"
probe_password_file = "probe"
http = "127.0.0.1:2"
[[hosts]]
name = "h1"
ssh = "h1"
[[hosts]]
name = "lb1"
ssh = "lb1"
[[brokers]]
name = "mb1"
host = "lb1"
address = "lb1:5672"
agent = "lb1:8081"
check = "lb1:8082"
management = "lb1:15672"
node_list_file = "/etc/messagebus/list.txt"
[[users]]
name = "mb-agent"
role = "agent"
password_file = "agent"
[[users]]
name = "web"
role = "application"
password_file = "web"
[[gateways]]
name = "gw1"
host = "h1"
user = "web"
tokens_file = "tokens.toml"
address = "127.0.0.1:{port}"
admin = "127.0.0.1:{admin}"
"""
ASK = """
import time, urllib.request
for _ in range(600):
    try:
        print(urllib.request.urlopen("http://127.0.0.1:{admin}/livez").read().decode())
        break
    except OSError:
        time.sleep(0.1)
"""


def test_the_packages_unit_runs_a_gateway_by_what_provision_writes(
    installed: str, buildah: Buildah, tmp_path: Path
) -> None:
    """Its files as `ops provision` owns and permits them, and the unit's own command as the unit's user."""
    admin = free_port()
    values = tomllib.loads(INVENTORY.format(port=free_port(), admin=admin))
    inventory = parse(values, base=tmp_path)
    known = {path: Secret("secret") for path in secret_files(inventory, inventory.brokers)}
    known[tmp_path / "tokens.toml"] = Secret("# none yet\n")
    wanted = wanted_host(inventory, "h1", known, "")
    for file in wanted.files:
        (tmp_path / "file").write_text(file.text)
        rights = (f"--chown={file.owner}", f"--chmod={file.mode:o}")
        buildah("copy", "-q", *rights, installed, tmp_path / "file", file.path)
    name, _, instance = GATEWAY_UNIT.partition("@")
    unit = buildah.run(installed, "cat", f"/lib/systemd/system/{name}@.service")
    said = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    start = said["ExecStart"].replace("%i", instance)
    ask = f"/opt/messagebus/bin/python -c {shlex.quote(ASK.format(admin=admin))}"
    script = f"{start} & {ask}; kill $!; wait $! || echo ended by $?"
    told = buildah.run(installed, "su", "-s", "/bin/sh", said["User"], "-c", script)
    assert "live" in told
    assert "gateway: ended\n" in told
    assert "ended by" not in told


def test_the_package_installs_its_units_and_starts_nothing(
    installed: str, buildah: Buildah
) -> None:
    assert "version 0.1.0" in buildah.run(installed, "messagebus", "--version")
    listed = buildah.run(installed, "dpkg", "-L", "messagebus")
    assert "/lib/systemd/system/messagebus@.service" in listed
    assert "messagebus" in buildah.run(installed, "stat", "-c", "%U %a", "/var/lib/messagebus")
    buildah.run(installed, "dpkg", "--purge", "messagebus")
    assert "No such file" in buildah.run(installed, "ls", "/opt/messagebus", ok=False)
