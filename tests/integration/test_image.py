"""The image and the Debian package, built without a daemon on a root folder of Debian, and started."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.dist import main as make_dist
from ops.local import roots

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 300
BASE, IMAGE = "localhost/base", "localhost/messagebus"
# Of this host: where pip finds its registry, and whom it trusts.
GIVEN = ("/etc/pip.conf", "/etc/ssl/certs")


class Buildah:
    """Images in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._storage = ("--root", str(folder / "images"), "--runroot", str(folder / "run"))

    def __call__(self, *words: str | Path, ok: bool = True) -> str:
        argv = ["buildah", *self._storage, *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        assert not ok or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def build(self, source: Path, *words: str | Path) -> None:
        volumes = [f"--volume={path}:{path}:ro" for path in GIVEN if Path(path).exists()]
        file = source / "deploy" / "Containerfile"
        self(
            *("bud", "--isolation", "chroot", "--layers", f"--build-arg=BASE={BASE}"),
            *(*volumes, *words, "-f", file, source),
        )

    def run(self, container: str, *argv: str, ok: bool = True) -> str:
        return self("run", "--isolation", "chroot", container, "--", *argv, ok=ok)


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


def test_the_image_runs_each_service_as_nobody_in_particular(buildah: Buildah) -> None:
    container = buildah("from", IMAGE).split()[-1]
    assert "version 0.1.0" in buildah.run(container, "messagebus", "--version")
    assert "uid=10001" in buildah.run(container, "id")
    for service in ("agent", "gateway", "monitor"):
        told = buildah.run(container, "messagebus", service, "--config", "/absent.toml", ok=False)
        assert "/absent.toml" in told
        assert "Traceback" not in told
        assert "pip install" not in told


def test_the_package_installs_its_units_and_starts_nothing(
    buildah: Buildah, source: Path, tmp_path: Path
) -> None:
    buildah.build(source, "--target", "deb", "--output", f"type=local,dest={tmp_path}")
    (package,) = tmp_path.glob("messagebus_0.1.0_*.deb")
    container = buildah("from", BASE).split()[-1]
    buildah("copy", "-q", container, package, "/messagebus.deb")
    # What it depends on beside Python is in no root folder of the tests.
    installed = ("dpkg", "--force-depends", "-i", "/messagebus.deb")
    script = "adduser() { useradd --system --user-group messagebus; }; export -f adduser; "
    buildah.run(container, "bash", "-c", script + " ".join(installed))
    assert "version 0.1.0" in buildah.run(container, "messagebus", "--version")
    listed = buildah.run(container, "dpkg", "-L", "messagebus")
    assert "/lib/systemd/system/messagebus@.service" in listed
    assert "messagebus" in buildah.run(container, "stat", "-c", "%U %a", "/var/lib/messagebus")
    buildah.run(container, "dpkg", "--purge", "messagebus")
    assert "No such file" in buildah.run(container, "ls", "/opt/messagebus", ok=False)
