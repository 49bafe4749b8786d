"""Programs of Debian packages that only tests need: used where they are, else unpacked.

Nothing is installed, so no service is started and none is left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "messagebus" / "debian"
# The largest is 20 MB.
DOWNLOAD_WITHIN_S = 240


def program(name: str, *, package: str) -> str:
    """Return the path of a program: of the system, or of its package, which is fetched once and unpacked.

    Raises RuntimeError with the command that installs it.
    """
    if found := shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
        return found
    folder = CACHE / package
    with _locked(folder):
        if not (found := _in(folder, name)):
            _unpack(package, folder)
            found = _in(folder, name)
    if not found:
        raise RuntimeError(f"no {name}: apt-get install {package}")
    return found


def _in(folder: Path, name: str) -> str:
    places = (folder / "usr" / kind / name for kind in ("bin", "sbin"))
    return next((str(path) for path in places if path.is_file()), "")


def _unpack(package: str, folder: Path) -> None:
    try:
        _run(["apt-get", "-q", "download", package], folder)
    except RuntimeError:
        # Lists that are missing or old.
        _run(["apt-get", "-q", "update"], folder)
        _run(["apt-get", "-q", "download", package], folder)
    for archive in folder.glob("*.deb"):
        _run(["dpkg", "-x", str(archive), "."], folder)
        archive.unlink()


def _run(argv: list[str], folder: Path) -> None:
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_WITHIN_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")


class _locked:
    """Lock with which two test runs at once fetch a package once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / ".lock").open("w")

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()
