"""Uploads of recorded rows from the disks of their hosts to one address, where ``spark/`` reads them.

    folder = "runs/november"
    with Uploads(folder, "s3a://lake/events/november"), Recorder(
        folder, run_id="november", file_age_s=60
    ) as recorder:
        ...

A file that no recorder writes any more goes to the address, is looked for there, and is deleted here. The
files of a killed process go with it. The manifest of a folder goes as ``manifest-NAME.json``: each host has
one, and Spark joins them. Processes of one host may share a folder; one of them uploads at a time.

The disk stays bounded: while the address is out of reach the oldest files are deleted, and counted in the
manifest, so that every report on the run says so.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

from messagebus.errors import ConfigError, MessageBusError, RecordingFailed, Stopped, reason_of
from messagebus.recording.files import anchor_now
from messagebus.recording.manifest import MANIFEST
from messagebus.recording.parts import RunPart, note, process_name

__all__ = ["Store", "UploadStats", "Uploads", "store_of"]

log = logging.getLogger("messagebus.uploads")

EVERY_S = 30.0
STOP_TIMEOUT_S = 60.0
AGAIN_S = 0.2
BYTES_MAX = 4 * 1024**3
CHUNK = 4 * 1024 * 1024
LOCK = ".uploads.lock"
LOCAL = re.compile(r"file:(//)?(?=/)")
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Spark's name of the same protocol.
S3 = re.compile(r"s3[an]?://")
# Of requests to an object store.
CONNECT_S, REQUEST_S = 10.0, 60.0


class Store(Protocol):
    """Place of files by name. Both raise OSError, in one line and without secrets."""

    def put(self, source: IO[bytes], name: str) -> None:
        """Write a file whole, in place of another of its name."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, None where there is none."""


def store_of(address: str) -> Store:
    """Return the store of a folder or an address. Raises ConfigError.

    ``s3a://`` and ``s3://`` take key and endpoint from the environment (``AWS_ACCESS_KEY_ID``,
    ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``); these, ``hdfs://`` and ``gs://`` need pyarrow.
    """
    if begin := LOCAL.match(address):
        return _Folder(Path(address[begin.end() :]))
    if not REMOTE.match(address):
        return _Folder(Path(address))
    if "@" in address.partition("://")[2].partition("/")[0]:
        raise ConfigError("an address with a password: keys belong in the environment")
    try:
        return _Remote(address)
    except ImportError:
        raise ConfigError(f"{address}: needs pyarrow: pip install pyarrow") from None
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{address}: {reason_of(fault)}") from None


class _Folder:
    """A folder of this machine, or one that is mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, source: IO[bytes], name: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            there = (self._folder / name).stat()
            if os.path.samestat(there, os.fstat(source.fileno())):
                raise OSError(
                    f"{self._folder} is the folder itself: nothing is uploaded, or deleted"
                )
        candidate = self._folder / f".{name}.{os.getpid()}"
        with candidate.open("wb") as target:
            shutil.copyfileobj(source, target, CHUNK)
            target.flush()
            os.fsync(target.fileno())
        candidate.replace(self._folder / name)

    def size(self, name: str) -> int | None:
        with suppress(FileNotFoundError):
            return (self._folder / name).stat().st_size
        return None


class _Remote:
    """An address of a file system that Arrow knows. Objects are written whole, or not at all."""

    def __init__(self, address: str) -> None:
        from pyarrow import fs

        if S3.match(address):
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            self._system: Any = fs.S3FileSystem(
                endpoint_override=endpoint or None,
                region=os.environ.get("AWS_REGION", "us-east-1"),
                connect_timeout=CONNECT_S,
                request_timeout=REQUEST_S,
            )
            self._root = S3.sub("", address).rstrip("/")
        else:
            self._system, root = fs.FileSystem.from_uri(address)
            self._root = root.rstrip("/")

    def put(self, source: IO[bytes], name: str) -> None:
        path = f"{self._root}/{name}"
        if self._system.type_name != "s3":
            self._system.create_dir(self._root, recursive=True)
        with self._system.open_output_stream(path) as target:
            while chunk := source.read(CHUNK):
                target.write(chunk)

    def size(self, name: str) -> int | None:
        found = self._system.get_file_info(f"{self._root}/{name}")
        return found.size if found.is_file else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStats:
    """Counts of one `Uploads`. files, bytes: uploaded. failed: rounds that the address ended.

    deleted: files that made room without having been uploaded. waiting: closed files that are still here.
    """

    files: int
    bytes: int
    failed: int
    deleted: int
    waiting: int


class Uploads:
    """Uploader of the closed files of a recorder's folder, on a thread of its own.

    folder: of one run, of `Recorder` or `QueueSampler`. address: a folder, or an address such as
    ``s3a://bucket/run``, which Spark gets as ``--events``. every_s: between two rounds. bytes_max: of closed
    files in the folder; above it the oldest are deleted. store: instead of the address's own.
    Raises ConfigError.
    """

    def __init__(
        self,
        folder: Path | str,
        address: str,
        *,
        every_s: float = EVERY_S,
        bytes_max: int = BYTES_MAX,
        store: Store | None = None,
    ) -> None:
        if every_s <= 0 or bytes_max < 1:
            raise ConfigError("Uploads: every_s: above 0; bytes_max: 1 or more")
        self.folder, self.address = Path(folder), address
        self._store = store or store_of(address)
        self._every_s, self._bytes_max = every_s, bytes_max
        self._files = self._bytes = self._failed = self._deleted = 0
        self._logged = ""
        self._sent: bytes | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin with what is there."""
        if self._thread is not None:
            raise Stopped("uploads start once")
        self._thread = threading.Thread(target=self._run, name="messagebus-uploads", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> UploadStats:
        """Upload what is left, the manifest last. Stop the recorders first.

        Files that could not be uploaded stay in the folder, are counted as waiting, and are taken by the next
        start.
        """
        until_s = time.monotonic() + timeout_s
        if self._thread is not None and not self._stopping.is_set():
            self._stopping.set()
            self._thread.join(timeout_s)
        while not self.upload() and time.monotonic() < until_s:
            time.sleep(AGAIN_S)
        if left := self.stats().waiting:
            log.warning("files not uploaded count=%d folder=%s", left, self.folder)
        return self.stats()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stats(self) -> UploadStats:
        """Return a snapshot. Cost: looks at each file of the folder."""
        waiting = sum(1 for path in self._closed() if path is not None)
        return UploadStats(
            files=self._files,
            bytes=self._bytes,
            failed=self._failed,
            deleted=self._deleted,
            waiting=waiting,
        )

    def _run(self) -> None:
        while True:
            self.upload()
            if self._stopping.wait(self._every_s):
                return

    def upload(self) -> bool:
        """Upload each closed file and the manifest, now. Returns False where that must be done again."""
        if not self.folder.is_dir():
            return True  # nobody has recorded yet
        try:
            with self._alone() as is_alone:
                if not is_alone:
                    return False
                self._make_room()
                for path in self._closed():
                    self._upload(path)
                self._upload_manifest()
        except (OSError, MessageBusError, ValueError, KeyError, TypeError) as fault:
            self._fail(reason_of(fault))
            return False
        self._logged = ""
        return True

    def _fail(self, why: str) -> None:
        self._failed += 1
        if why != self._logged:
            self._logged = why
            log.warning("rows not uploaded, tried again address=%s error=%s", self.address, why)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Keep other processes of the folder out of a round."""
        with (self.folder / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _closed(self) -> Iterator[Path]:
        """Return the files that nobody writes, the oldest first.

        An empty one was just made, and is not locked yet.
        """
        found = [*_existing(self.folder.glob("*.ndjson"))]
        for _, path in sorted((stat.st_mtime_ns, path) for path, stat in found if stat.st_size):
            with suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                yield path

    def _upload(self, path: Path) -> None:
        with path.open("rb") as file:
            self._store.put(file, path.name)
            size = file.tell()
        if (there := self._store.size(path.name)) != size:
            raise OSError(f"{path.name}: {size:,} bytes were written, and {there} are there")
        path.unlink(missing_ok=True)
        self._files += 1
        self._bytes += size

    def _upload_manifest(self) -> None:
        with suppress(FileNotFoundError):
            content = (self.folder / MANIFEST).read_bytes()
            if content != self._sent:
                name = f"manifest-{json.loads(content)['anchor']['process']}.json"
                with (self.folder / MANIFEST).open("rb") as file:
                    self._store.put(file, name)
                self._sent = content

    def _make_room(self) -> None:
        sizes = [(path, stat.st_size) for path, stat in _existing(self._closed())]
        total, victims = sum(size for _, size in sizes), list[Path]()
        for path, size in sizes:
            if total <= self._bytes_max:
                break
            victims.append(path)
            total -= size
        if not victims:
            return
        # Told before it is done, or a kill in between would lose rows in silence; a full disk takes no
        # manifest before it.
        is_told = self._note(len(victims))
        deleted = 0
        for path in victims:
            with suppress(OSError):
                path.unlink()
                deleted += 1
        self._deleted += deleted
        log.warning("rows deleted unsent files=%d folder=%s", deleted, self.folder)
        if not is_told:
            self._note(deleted)

    def _note(self, deleted: int) -> bool:
        """Tell in the manifest what is deleted. Returns whether it is written."""
        now_ns, name = time.monotonic_ns(), process_name("uploads-")
        try:
            run_id = json.loads((self.folder / MANIFEST).read_text())["run_id"]
            part = RunPart(
                run_id=run_id,
                name=name,
                anchor=anchor_now(name),
                start_ns=now_ns,
                end_ns=now_ns,
                share=1.0,
                files_deleted=deleted,
            )
            note(self.folder, part)
        except (OSError, ValueError, KeyError, TypeError, RecordingFailed) as fault:
            log.warning("manifest not written error=%s", reason_of(fault))
            return False
        return True


def _existing(paths: Iterator[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for path in paths:
        with suppress(OSError):
            yield path, path.stat()
