"""The wheel and the source archive of messagebus: the same bytes from the same commit on any machine.

``python -m ops.dist [FOLDER]``, or ``make dist``. Times in both are that of the commit. ``requirements.txt``
beside them has the libraries of all services, by version and hash, for images and packages. The bill of
materials (SBOM) has these libraries too, and the files of others in the wheel, with their licences.

The long description of both is the README without what an index cannot show: relative links, pictures and
comments.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path

from messagebus.errors import MessageBusError
from ops.commands.kits import CHECKOUT
from ops.locked import SERVICES, Lock

FILES = ("pyproject.toml", "README.md", "LICENSE")
PACKAGE = "messagebus"
# Time for a checkout without history: the earliest that a wheel, which is a ZIP file, can hold.
NO_COMMIT_S = 315_532_800
BUILD_WITHIN_S = 300
# A wheel keeps the modes of its files.
UMASK = 0o022
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
# Pictures and links whose address has no scheme.
_PICTURE = re.compile(r"!\[[^]]*\]\((?!\w+:)[^)]*\)\n*")
_LINK = re.compile(r"\[([^]]*)\]\((?!\w+:)[^)]*\)")


class NotBuilt(MessageBusError):
    """Raised when a distribution cannot be built; the text is the end of what the builder wrote."""


def build(out: Path, source: Path = CHECKOUT) -> list[Path]:
    """Build both. Returns the wheel and the archive. Raises NotBuilt with the builder's last output."""
    at_s = _commit_s(source)
    with tempfile.TemporaryDirectory(prefix="messagebus-dist-") as place:
        copy = Path(place, "source")
        shutil.copytree(
            source / PACKAGE, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__")
        )
        for name in FILES:
            shutil.copyfile(source / name, copy / name)
        readme = copy / "README.md"
        readme.write_text(described(readme.read_text()))
        for path in copy.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        done = subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", place, str(copy)],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(at_s)},
            umask=UMASK,
            capture_output=True,
            text=True,
            timeout=BUILD_WITHIN_S,
            check=False,
        )
        if done.returncode:
            raise NotBuilt(" ".join((done.stdout + done.stderr).split())[-300:])
        (wheel,), (archive,) = Path(place).glob("*.whl"), Path(place).glob("*.tar.gz")
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(wheel, out / wheel.name)
        (out / archive.name).write_bytes(_plain(archive, at_s))
    return [out / wheel.name, out / archive.name]


def bill_of_materials(wheel: Path, lock: Lock) -> str:
    """Return a wheel's bill of materials in CycloneDX's JSON: the same text for the same wheel.

    Of the libraries, only those that no extra brings are required.
    """
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    from ops.vendor import manifest

    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    itself = Component(
        type=ComponentType.LIBRARY,
        bom_ref=project["name"],
        name=project["name"],
        version=project["version"],
        purl=PackageURL("pypi", None, project["name"], project["version"]),
        licenses=[LicenseExpression(project["license"])],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )
    required = lock.required(lock.named(()))
    libraries = {
        name: Component(
            type=ComponentType.LIBRARY,
            bom_ref=name,
            name=name,
            version=lock.version(name),
            purl=PackageURL("pypi", None, name, lock.version(name)),
            scope=ComponentScope.REQUIRED if name in required else ComponentScope.OPTIONAL,
        )
        for name in lock.of_services()
    }
    vendored = [
        Component(
            type=ComponentType.LIBRARY,
            bom_ref=f"npm:{each['name']}",
            name=each["name"],
            version=each["version"],
            purl=PackageURL("npm", *_npm(each["name"]), each["version"]),
            licenses=[DisjunctiveLicense(id=each["licence"])],
        )
        for each in manifest()
    ]
    bom = Bom(
        components=[*libraries.values(), *vendored],
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}"),
    )
    bom.metadata.component = itself
    bom.metadata.timestamp = datetime.fromtimestamp(_commit_s(CHECKOUT), UTC)
    named = [libraries[name] for name in lock.named(SERVICES)]
    bom.register_dependency(itself, [*named, *vendored])
    for name, library in libraries.items():
        bom.register_dependency(library, [libraries[each] for each in lock.required_by(name)])
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _npm(name: str) -> tuple[str | None, str]:
    """Return namespace and name of an npm package."""
    scope, _, rest = name.rpartition("/")
    return scope or None, rest


def described(readme: str) -> str:
    """Return a README without relative links, pictures of the checkout and comments."""
    return _LINK.sub(r"\1", _PICTURE.sub("", _COMMENT.sub("", readme)))


def _commit_s(source: Path) -> int:
    argv = ["git", "-C", str(source), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError:  # no git: as without history
        return NO_COMMIT_S
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else NO_COMMIT_S


def _plain(archive: Path, at_s: int) -> bytes:
    """Repack an archive: files in the order of their names, without owners, all with one time."""
    packed = io.BytesIO()
    with (
        tarfile.open(archive) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=at_s) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            info = tarfile.TarInfo(member.name)
            info.type, info.size, info.mtime = member.type, member.size, at_s
            info.mode = 0o755 if member.isdir() else 0o644
            new.addfile(info, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def main() -> None:
    """Build both, their requirements and the bill of materials; print one line for each file."""
    try:
        out = Path(sys.argv[1] if len(sys.argv) > 1 else CHECKOUT / "dist")
        wheel, archive = build(out)
        lock, bill = Lock(), wheel.with_name("-".join(wheel.name.split("-")[:2]) + ".cdx.json")
        (out / "requirements.txt").write_text(lock.lines(lock.of_services()))
        bill.write_text(bill_of_materials(wheel, lock))
        for path in (wheel, archive, out / "requirements.txt", bill):
            print(path)
    except MessageBusError as fault:
        sys.exit(f"dist: {fault}")


if __name__ == "__main__":
    main()
