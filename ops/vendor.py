"""Files of others in the monitor's folder: fetched by version from the npm registry, compared by hash.

``python -m ops.vendor``, or ``make vendor``. Wants npm and the network; nothing else here does.
"""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from messagebus.errors import MessageBusError
from ops.commands.kits import CHECKOUT

FOLDER = CHECKOUT / "messagebus" / "services" / "monitor" / "static" / "vendor"
FETCH_WITHIN_S = 300


class NotVendored(MessageBusError):
    """Raised when a package cannot be fetched, or is not the one of the MANIFEST."""


def manifest(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the packages of the folder's MANIFEST: name, version, licence, integrity, files."""
    packages: list[dict[str, Any]] = tomllib.loads((folder / "MANIFEST").read_text())["package"]
    return packages


def faults(folder: Path = FOLDER) -> list[str]:
    """Return which files differ from the MANIFEST, or are not in it; [] when all is well."""
    wanted = {
        name: file["sha256"] for each in manifest(folder) for name, file in each["files"].items()
    }
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "MANIFEST"
    }
    return sorted(name for name in wanted | found if wanted.get(name) != found.get(name))


def unpack(package: dict[str, Any], tarball: bytes) -> dict[str, bytes]:
    """Return the files of a package by the names they have here. Raises NotVendored for another hash."""
    digest = base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    name = f"{package['name']}@{package['version']}"
    if f"sha512-{digest}" != package["integrity"]:
        raise NotVendored(f"{name}: the registry's package is not the one of the MANIFEST")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        for here, file in package["files"].items():
            member = archive.extractfile(f"package/{file['from']}")
            files[here] = member.read() if member else b""
            if hashlib.sha256(files[here]).hexdigest() != file["sha256"]:
                raise NotVendored(f"{name}: {file['from']} is not the one of the MANIFEST")
    return files


def fetch(package: dict[str, Any]) -> bytes:
    """Fetch a package with npm. Raises NotVendored."""
    with tempfile.TemporaryDirectory(prefix="messagebus-vendor-") as place:
        argv = ["npm", "pack", "--silent", "--pack-destination", place]
        name = f"{package['name']}@{package['version']}"
        try:
            done = subprocess.run(
                [*argv, name],
                capture_output=True,
                text=True,
                timeout=FETCH_WITHIN_S,
                check=False,
            )
        except OSError as fault:
            raise NotVendored(f"npm: {fault.strerror}") from fault
        if done.returncode:
            raise NotVendored(f"npm pack {name}: {' '.join(done.stderr.split())[-300:]}")
        (tarball,) = Path(place).glob("*.tgz")
        return tarball.read_bytes()


def main() -> None:
    """Put all files in place anew and print their packages."""
    try:
        for package in manifest():
            for name, body in unpack(package, fetch(package)).items():
                (FOLDER / name).write_bytes(body)
            print(f"{package['name']} {package['version']} ({package['licence']})")
        if different := faults():
            raise NotVendored(f"not of the MANIFEST: {', '.join(different)}")
    except NotVendored as fault:
        sys.exit(f"vendor: {fault}")


if __name__ == "__main__":
    main()
