"""Addresses of events and lakes: folders of this machine, and those of any file system that Hadoop knows.

``s3a://bucket/lake``, ``hdfs://nn:8020/lake``. A `Remote` has those methods of `pathlib.Path` that this kit
uses, and passes for one. Hadoop carries them out in the JVM of the session, with the credentials of Spark.
The session is started where there is none yet. Errors are OSError, in one line.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias, cast

import click
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from messagebus.files import replace_file

LOCAL = re.compile(r"file:(//)?(?=/)")
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
NOT_THERE = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")
# Stores without a rename that replaces: an object is written whole, or not at all.
OBJECTS = ("s3a", "s3", "gs", "abfs", "abfss", "wasb", "wasbs", "oss", "cosn")
CHUNK = 4 * 1024 * 1024
# S3 and FAT count the time of a file in steps of one and two seconds.
SETTLED_NS = 3 * 1_000_000_000


@dataclass(frozen=True, slots=True, order=True)
class Remote:
    """A file or folder at an address of Hadoop."""

    address: str

    def __str__(self) -> str:
        return self.address

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.address.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        return self.address.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Remote:
        return Remote(self.address.rstrip("/").rpartition("/")[0])

    @property
    def is_object(self) -> bool:
        return self.address.partition(":")[0] in OBJECTS

    def resolve(self) -> Remote:
        return self

    def exists(self) -> bool:
        return bool(self._ask(lambda system, path: system.exists(path)))

    def is_dir(self) -> bool:
        status = self._status()
        return status is not None and bool(status.isDirectory())

    def is_file(self) -> bool:
        status = self._status()
        return status is not None and bool(status.isFile())

    def glob(self, pattern: str) -> Iterator[Remote]:
        """Yield what is below it and fits a pattern of Hadoop, in the order of their names."""
        wanted = f"{escaped(self.address.rstrip('/'))}/{pattern}"
        found = self._ask(lambda system, _: system.globStatus(_java().Path(wanted)))
        yield from (Remote(each.getPath().toString()) for each in found or ())

    def iterdir(self) -> Iterator[Remote]:
        found = self._ask(lambda system, path: system.listStatus(path))
        yield from (Remote(each.getPath().toString()) for each in found)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        self._ask(lambda system, path: system.mkdirs(path))

    def touch(self) -> None:
        self.write_bytes(b"")

    def unlink(self) -> None:
        self._ask(lambda system, path: system.delete(path, False))

    def rmtree(self) -> None:
        self._ask(lambda system, path: system.delete(path, True))

    def open(self, mode: str = "rb") -> BinaryIO:
        assert mode == "rb", mode
        status = self._status()
        if status is None:
            raise FileNotFoundError(2, "no such file", self.address)
        stream = self._ask(lambda system, path: system.open(path))
        return cast(BinaryIO, io.BufferedReader(_Stream(stream, int(status.getLen())), CHUNK))

    def read_text(self) -> str:
        with self.open() as file:
            return file.read().decode()

    def write_bytes(self, content: bytes) -> None:
        """Write a file whole. On file systems with a rename nobody sees a part of it."""
        candidate = self if self.is_object else self.parent / f".{self.name}.{os.getpid()}"

        def write(system: Any, _path: Any) -> None:
            stream = system.create(_java().Path(candidate.address), True)
            try:
                stream.write(content)
            finally:
                stream.close()
            if candidate != self:
                java = _java()
                java.FileContext.getFileContext(system.getUri(), java.conf).rename(
                    *(java.Path(each.address) for each in (candidate, self)), java.overwrite
                )

        self._ask(write)

    def sha256(self) -> tuple[str, int]:
        """Return the digest of its content, made in the JVM, and its size in bytes."""
        status = self._status()
        size = int(status.getLen()) if status is not None else 0

        def digest(system: Any, path: Any) -> str:
            stream = system.open(path)
            try:
                return str(_java().DigestUtils.sha256Hex(stream))
            finally:
                stream.close()

        return str(self._ask(digest)), size

    def identity(self) -> tuple[Any, ...]:
        """Return what changes when Spark replaces the folder: names, sizes and times of its files."""
        return tuple(sorted((name, *stamp) for name, stamp in self.stamps().items()))

    def stamps(self) -> dict[str, list[Any]]:
        """Return name -> time in ns, size, and the etag where the store has one, of what is in a folder."""
        found = self._ask(lambda system, path: system.listStatus(path))
        return {each.getPath().getName(): _stamp_of(each) for each in found}

    def _status(self) -> Any:
        with contextlib.suppress(FileNotFoundError):
            return self._ask(lambda system, path: system.getFileStatus(path))
        return None

    def _ask(self, question: Any) -> Any:
        """Ask Hadoop. Raises OSError with the innermost reason."""
        java = _java()
        try:
            path = java.Path(self.address)
            return question(path.getFileSystem(java.conf), path)
        except Py4JJavaError as fault:
            raise _as_os_error(self.address, fault.java_exception) from None


Place: TypeAlias = Path | Remote


class PlaceType(click.ParamType[Path]):
    """Type of an option that takes a folder, or an address of Hadoop."""

    name = "address"

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        return value if isinstance(value, Path) else place_of(str(value))


def place_of(text: str) -> Path:
    """Return the place of a path or an address. ``file:`` is a path of this machine."""
    if begin := LOCAL.match(text):
        return Path(text[begin.end() :])
    return cast(Path, Remote(text)) if REMOTE.match(text) else Path(text)


def address_of(place: Place) -> str:
    """Return the address of a place, for any default file system of Spark. Nothing is %-escaped."""
    return place.address if isinstance(place, Remote) else f"file://{place.resolve()}"


def pattern_of(place: Place) -> str:
    """Return the same for reading, where Spark takes every path for a pattern: this one file or folder."""
    return escaped(address_of(place))


def escaped(address: str) -> str:
    return re.sub(r"([\\{}\[\]*?^])", r"\\\1", address)


def digest_of(place: Place) -> tuple[str, int]:
    """Return the SHA-256 of a file's present content in hex, and its size in bytes. Raises OSError.

    Of a file that grows, Spark does not get more than it finds either.
    """
    if isinstance(place, Remote):
        return place.sha256()
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def stamps_of(folder: Place) -> dict[str, list[Any]]:
    """Return name -> stamp of the files in a folder; its first number is the file's time in ns.

    A file with the stamp of before has the content of before, if its time was `SETTLED_NS` ago by then: file
    systems count time in steps. Cost: one listing.
    """
    if isinstance(folder, Remote):
        return folder.stamps()
    found = {}
    with os.scandir(folder) as entries:
        for each in entries:
            with contextlib.suppress(FileNotFoundError):  # a link to nothing
                stat = each.stat()
                found[each.name] = [stat.st_mtime_ns, stat.st_size, stat.st_ctime_ns, stat.st_ino]
    return found


def identity_of(place: Place) -> tuple[Any, ...]:
    """Return the identity of a folder: it changes when Spark replaces the folder."""
    if isinstance(place, Remote):
        return place.identity()
    stat = place.stat()
    return stat.st_ino, stat.st_mtime_ns


def remove(place: Place) -> None:
    """Delete a folder with all that is in it."""
    if isinstance(place, Remote):
        place.rmtree()
    else:
        shutil.rmtree(place)


def write_whole(place: Place, content: bytes) -> None:
    """Write a file, whole or not at all."""
    if isinstance(place, Remote):
        place.write_bytes(content)
        return
    replace_file(place, content)


def _stamp_of(status: Any) -> list[Any]:
    stamp = [status.getModificationTime() * 1_000_000, status.getLen()]
    gateway = cast(Any, SparkContext)._gateway
    if is_instance_of(gateway, status, "org.apache.hadoop.fs.EtagSource"):
        stamp.append(status.getEtag())
    return stamp


class _Stream(io.RawIOBase):
    """A file of Hadoop that is read over py4j: for the ends of files, not for rows."""

    def __init__(self, stream: Any, size: int) -> None:
        self._stream, self._size, self._at = stream, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {0: 0, 1: self._at, 2: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(0, self._size - self._at))
        if not wanted:
            return 0
        try:
            self._stream.seek(self._at)
            found = bytes(_java().IOUtils.toByteArray(self._stream, wanted))
        except Py4JJavaError as fault:
            raise _as_os_error("", fault.java_exception) from None
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(Py4JJavaError):
                self._stream.close()
        super().close()


@dataclass(frozen=True, slots=True)
class _Java:
    """The part of the JVM that is used."""

    conf: Any
    Path: Any
    FileContext: Any
    DigestUtils: Any
    IOUtils: Any
    overwrite: Any


def _java() -> _Java:
    from spark.session import spark_session  # only where an address is remote

    context = SparkContext._active_spark_context
    if context is None:
        context = spark_session("messagebus").sparkContext
    gateway, jvm = cast(Any, context)._gateway, cast(Any, context)._jvm
    rename = jvm.org.apache.hadoop.fs.Options.Rename
    overwrite = gateway.new_array(rename, 1)
    overwrite[0] = rename.OVERWRITE
    return _Java(
        cast(Any, context)._jsc.hadoopConfiguration(),
        jvm.org.apache.hadoop.fs.Path,
        jvm.org.apache.hadoop.fs.FileContext,
        jvm.org.apache.commons.codec.digest.DigestUtils,
        jvm.org.apache.commons.io.IOUtils,
        overwrite,
    )


def _as_os_error(address: str, fault: Any) -> OSError:
    kind = fault.getClass().getName()
    inner = fault
    while inner.getCause() is not None:
        inner = inner.getCause()
    text = str(fault.getMessage() or inner.getMessage() or kind).splitlines()[0]
    told = f"{kind.rpartition('.')[2]}: {text}"
    made = FileNotFoundError if kind in NOT_THERE else OSError
    return made(2 if made is FileNotFoundError else 5, told, address)
