"""A backup of a cluster: its contents, the part of them that a cluster lacks, and the archive as one file.

A backup holds the inventory and the files that it names on this machine, the consumer list, every agent's
topology, and every broker's definitions. It holds no messages: those are on the brokers' disks, and their
copies are mirrors.

A restore never changes an existing thing: it makes missing ones, and reports those that differ. A deliberate
deletion looks like a loss. So rights come back only for users that the inventory names, and topology only
while agents know the deletions, or by name.

The archive is a gzipped tar with a table of contents, readable by its owner alone. Names inside are paths. A
listed file that is missing or changed is a fault of the whole archive.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ops.cluster.topology import latest, wanted_items
from ops.errors import OpsError

CONTENTS = "contents.json"
FORMAT = 1
# Definitions of a broker with 10,000 queues are 10 MB.
MEMBER_BYTES_MAX = 500_000_000


@dataclass(frozen=True, slots=True)
class Archive:
    """The contents of a backup.

    facts: values of the table of contents beside the names. secret: names of files that hold secrets.
    """

    facts: Mapping[str, Any]
    files: Mapping[str, bytes]
    secret: frozenset[str] = field(default_factory=frozenset)


def write_archive(path: Path, archive: Archive) -> None:
    """Write an archive. Raises FileExistsError: a backup is never overwritten."""
    contents = {
        "format": FORMAT,
        **archive.facts,
        "files": {
            name: {"sha256": _digest(raw), "bytes": len(raw), "secret": name in archive.secret}
            for name, raw in archive.files.items()
        },
    }
    members = {CONTENTS: json.dumps(contents, indent=2).encode(), **archive.files}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as tar:
                for name, raw in members.items():
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = len(raw), 0o600
                    tar.addfile(member, io.BytesIO(raw))
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def read_archive(path: Path) -> Archive:
    """Read an archive. Raises OpsError unless every file is there, unchanged; OSError."""
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            found = {member.name: _content(tar, member) for member in tar if member.isfile()}
        contents = json.loads(found.pop(CONTENTS))
        if contents.pop("format") != FORMAT:
            raise OpsError(f"{path} is of another version of this command")
        listed = contents.pop("files")
        files = {name: found[name] for name in listed}
        if damaged := [
            name for name, raw in files.items() if _digest(raw) != listed[name]["sha256"]
        ]:
            raise OpsError(f"{path} is damaged: {', '.join(damaged)}")
        secret = frozenset(name for name, known in listed.items() if known["secret"])
    except (tarfile.TarError, EOFError, KeyError, ValueError, TypeError) as fault:
        raise OpsError(f"{path} is no backup, or damaged: {fault}") from fault
    return Archive(contents, files, secret)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > MEMBER_BYTES_MAX:
        raise OpsError(f"{member.name}: above {MEMBER_BYTES_MAX} bytes")
    file = tar.extractfile(member)
    return file.read() if file else b""


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


INVENTORY = "inventory.toml"
# Keys of the inventory that name files of other hosts, or files that are generated again.
_NOT_OURS = {"state_file", "master_pid_file", "node_list_file"}
_NO_SECRETS = {"list_file", "ca_file", "cert_file"}
# Kinds of definitions -> the key of a thing of that kind. Without the broker's own name and other
# global parameters: each broker has its own.
_KINDS: dict[str, Callable[[Mapping[str, Any]], object]] = {
    "vhosts": lambda one: one["name"],
    "users": lambda one: one["name"],
    "permissions": lambda one: (one["user"], one["vhost"]),
    "topic_permissions": lambda one: (one["user"], one["vhost"], one["exchange"]),
    "parameters": lambda one: (one["vhost"], one["component"], one["name"]),
    "policies": lambda one: (one["vhost"], one["name"]),
    "exchanges": lambda one: (one["vhost"], one["name"]),
    "queues": lambda one: (one["vhost"], one["name"]),
    "bindings": lambda one: json.dumps(one, sort_keys=True),
}
_HASH = "password_hash"
# Kinds of rights -> the field that names their user.
_USER = {"users": "name", "permissions": "user", "topic_permissions": "user"}
# Prefix of queues and exchanges that agents make and settle.
_AGENTS = "mb."


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Users whom a restore may make again and give rights to.

    users: names. admins: names of administrators.
    """

    users: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()


NOBODY = Rights()


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Definitions that a broker lacks. definitions: to import. remarks: lines on things left unchanged."""

    definitions: Mapping[str, list[Any]]
    remarks: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [
            f"{_one(kind)} {_name(one)}"
            for kind, things in self.definitions.items()
            for one in things
        ]


def files_named(inventory: str, base: Path) -> dict[Path, bool]:
    """Return the files of this machine that an inventory names: path -> whether it holds a secret.

    A folder stands for the files that are in it now. A named file need not exist.
    """
    found: dict[Path, bool] = {}
    for key, value in _texts(tomllib.loads(inventory)):
        path = base / value
        if key.endswith("_file") and key not in _NOT_OURS:
            found[path] = found.get(path, False) or key not in _NO_SECRETS
        elif key.endswith("_dir") and path.is_dir():
            found.update({each: True for each in sorted(path.iterdir()) if each.is_file()})
    return found


def is_named(inventory: str, base: Path, path: Path) -> bool:
    """Return whether an inventory names this path, in normal form, or its folder. The path need not exist."""

    def normal(value: str) -> Path:
        return Path(os.path.normpath(base / value))

    return any(
        (key.endswith("_file") and key not in _NOT_OURS and path == normal(value))
        or (key.endswith("_dir") and path.parent == normal(value))
        for key, value in _texts(tomllib.loads(inventory))
    )


def definitions_of(archive: Archive, node: str) -> dict[str, Any] | None:
    return _json(archive, f"definitions/{node}.json")


def topology_of(archive: Archive) -> dict[str, Mapping[str, Any]]:
    """Return the newest entry of every name, over all agents."""
    maps = {
        name: {entry["wanted"]: entry for entry in json.loads(raw)["entries"]}
        for name, raw in archive.files.items()
        if name.startswith("topology/")
    }
    return latest(maps)


def generation_of(archive: Archive) -> int:
    return int(archive.facts["generation"])


def age_of(archive: Archive, now: datetime) -> timedelta:
    """Return the age of a backup. Raises ValueError, KeyError when the archive does not tell it."""
    made_at = datetime.strptime(archive.facts["made_at"], "%Y-%m-%dT%H:%M:%SZ")
    return now - made_at.replace(tzinfo=UTC)


def missing_definitions(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    rights: Rights = NOBODY,
    is_password: Callable[[str, str], bool] = lambda user, stored: False,
) -> Missing:
    """Return the definitions of a backup that a broker lacks now.

    is_password: whether a stored hash is that of the user's known password. A broker that was
    set up anew stores the same password under another salt.
    """
    wanted: dict[str, list[Any]] = {}
    remarks = []
    there = {one["name"] for one in now.get("users", [])}
    for kind, key in _KINDS.items():
        has = {key(one): one for one in now.get(kind, [])}
        for one in before.get(kind, []):
            if _is_made_by_agents(kind, one):
                continue
            if key(one) not in has:
                if why := _why_left(kind, one, rights, there, is_password):
                    remarks.append(f"{_one(kind)} {_name(one)} {why}")
                    continue
                there.update([one["name"]] if kind == "users" else [])
                wanted.setdefault(kind, []).append(one)
            elif differs := _differs(kind, one, has[key(one)], is_password):
                remarks.append(f"{_one(kind)} {_name(one)} {differs}")
    return Missing(definitions=wanted, remarks=tuple(remarks))


def _why_left(
    kind: str,
    one: Mapping[str, Any],
    rights: Rights,
    there: set[str],
    is_password: Callable[[str, str], bool],
) -> str:
    """Return why a missing user or right is not restored; "" where it may be made again."""
    if kind not in _USER:
        return ""
    name = one[_USER[kind]]
    if name not in rights.users:
        return "is missing: --users brings it back, when the inventory names the user"
    if kind != "users":
        return "" if name in there else "is missing, and so is its user"
    if "administrator" in str(one.get("tags", "")) and name not in rights.admins:
        return "is missing, and was an administrator, which the inventory does not say"
    if not is_password(name, str(one.get(_HASH))):
        return "is missing, and had another password than the inventory says"
    return ""


def _differs(
    kind: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    is_password: Callable[[str, str], bool],
) -> str:
    """Return the difference in words; "" where there is none."""
    if before == now:
        return ""
    if kind != "users" or {**before, _HASH: ""} != {**now, _HASH: ""}:
        return "is another one now"
    known = [is_password(before["name"], str(one.get(_HASH))) for one in (before, now)]
    if all(known):
        return ""
    return "has another password now" + ("" if any(known) else ", or the same one stored again")


def missing_topology(
    before: Mapping[str, Mapping[str, Any]],
    now: Mapping[str, Mapping[str, Any]],
    *,
    floor: int = 0,
    only: Iterable[str] = ("*",),
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the entries to register again, as agents take them, and the reason for each other missing name.

    floor: the agents' floor; an entry that they do not know with a number up to it was deleted.
    only: patterns of the names that may come back.
    """

    def is_deleted(name: str, entry: Mapping[str, Any]) -> bool:
        return not now[name]["alive"] if name in now else entry["number"] <= floor

    left = {}
    for name, entry in sorted(before.items()):
        if not entry["alive"]:
            continue
        if is_deleted(name, entry):
            left[name] = "deleted since"
        elif name not in now and "expires_s" in entry:
            left[name] = "it expires; its application creates it again"
        elif name not in now and not any(fnmatchcase(name, each) for each in only):
            left[name] = "not asked for by --topology"
    missing = (e for name, e in before.items() if name not in now and name not in left)
    return wanted_items(missing), left


def without_memory(
    before: Mapping[str, Mapping[str, Any]], snapshots: Iterable[Mapping[str, Any]]
) -> bool:
    """Return whether no agent remembers the time of the backup, and so the deletions since.

    Numbers of changes never begin again below those that an agent knows.
    """
    tops = [
        max([s.get("floor", 0), s.get("dropped", 0), *(e["number"] for e in s["entries"])])
        for s in snapshots
    ]
    return max(tops, default=0) < max((entry["number"] for entry in before.values()), default=0)


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for each, inner in value.items():
            yield from _texts(inner, each)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)
    elif isinstance(value, str) and value:
        yield key, value


def _is_made_by_agents(kind: str, one: Mapping[str, Any]) -> bool:
    if kind == "bindings":
        return any(str(one[end]).startswith(_AGENTS) for end in ("source", "destination"))
    return kind in ("exchanges", "queues") and str(one["name"]).startswith(_AGENTS)


def _one(kind: str) -> str:
    return "policy" if kind == "policies" else kind.removesuffix("s")


def _name(one: Mapping[str, Any]) -> str:
    if "source" in one:
        return f"{one['source']} to {one['destination']}"
    return str(one.get("name") or f"of {one.get('user')}")


def _json(archive: Archive, name: str) -> dict[str, Any] | None:
    if name not in archive.files:
        return None
    found: dict[str, Any] = json.loads(archive.files[name])
    return found
