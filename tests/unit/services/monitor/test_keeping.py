"""Records that the monitor keeps: events on disk or in memory, rings of figures, files of others."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus import BusConfig
from messagebus.services.monitor import eventlog, parked
from messagebus.services.monitor.eventlog import Event, EventLog
from messagebus.services.monitor.history import FINE_S, NAMES_MAX, History, Ring
from messagebus.services.monitor.parked import ParkedReader, Reasons
from messagebus.services.monitor.people import Principal, Role
from ops import vendor
from ops.vendor import NotVendored

HOSTILE = "<script>\0\ud800\n\N{RIGHT-TO-LEFT OVERRIDE}"


def test_events_survive_the_process_newest_first(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "events.sqlite")
    log = EventLog(path)
    assert log.add([Event(n, "broker", f"mb{n % 2}", f"text {n}", "me") for n in range(5)])
    log.close()
    again = EventLog(path)
    assert [each.at_ms for each in again.recent(3)] == [4, 3, 2]
    assert [each.at_ms for each in again.recent(9, about="mb1")] == [3, 1]
    assert again.recent(9, kind="rule") == []
    assert again.add([Event(9, "action", HOSTILE, HOSTILE * 9_999, HOSTILE)])
    assert again.recent(1, about=HOSTILE)[0].at_ms == 9
    again.close()


def test_without_a_disk_events_are_in_memory_and_the_reason_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "a-file"
    broken.write_text("x")
    log = EventLog(str(broken / "events.sqlite"))
    assert not log.add([Event(1, "broker", "", HOSTILE)])
    assert "memory only" in log.fault
    assert not log.is_durable
    assert [each.at_ms for each in log.recent(9)] == [1]


def test_what_happened_while_the_disk_was_full_is_written_when_it_has_room(tmp_path: Path) -> None:
    path = str(tmp_path / "events.sqlite")
    log = EventLog(path)
    assert log.add([Event(1, "broker", "", "before")])
    db = log._db
    assert db is not None
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages}")
    while log.add([Event(2, "broker", "", "x" * 2_000)]):
        pass
    assert "full" in log.fault
    assert not log.add([Event(3, "action", "", "while full", "me")])
    assert log.recent(1)[0].at_ms == 3
    db.execute("PRAGMA max_page_count = 1000000")
    assert log.add([])
    assert log.fault == ""
    log.close()
    again = EventLog(path)
    assert [each.at_ms for each in again.recent(2)] == [3, 2]
    again.close()


def test_old_and_surplus_events_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventlog, "KEPT_MAX", 10)
    monkeypatch.setattr(eventlog, "PRUNED_EVERY", 5)
    log = EventLog(str(tmp_path / "events.sqlite"))
    log.add([Event(1, "broker", "", "old")])
    for number in range(40):
        log.add([Event(eventlog.KEPT_MS + 2 + number, "broker", "", "new")])
    assert 10 <= len(log.recent(99)) < 20
    log.close()


def test_no_number_of_other_events_pushes_out_what_somebody_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventlog, "KEPT_MAX", 10)
    monkeypatch.setattr(eventlog, "PRUNED_EVERY", 5)
    log = EventLog(str(tmp_path / "events.sqlite"))
    log.add([Event(1, "action", "orders/billing", "too old to be kept", "adam")])
    begun_ms = eventlog.KEPT_MS + 2
    log.add([Event(begun_ms, "action", "orders/billing", "purge", "adam")])
    for number in range(100):
        log.add([Event(begun_ms + number, "look", "orders/billing", "looked", "olga")])
    assert [each.text for each in log.recent(999, kind="action")] == ["purge"]
    assert 10 <= len(log.recent(999, kind="look")) <= 15
    log.close()


async def test_looks_of_a_reader_at_a_name_are_in_the_audit_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parked, "_read", lambda *_: Reasons((), at_s=time.monotonic()))
    events = EventLog()
    reader = ParkedReader(BusConfig(list_urls=("http://127.0.0.1:1/list",)), events)
    olga, otto = Principal("olga", Role.READER), Principal("otto", Role.READER)
    for _ in range(120):
        await reader.read("orders/billing", olga)
    assert reader.known("orders/billing", olga) is not None
    assert reader.known("orders/billing", otto) is None, "nobody sees bodies without a record of it"
    await reader.read("orders/search", olga)
    await reader.read("orders/billing", otto)
    await reader.read("orders/billing", Principal("vera", Role.VIEWER))
    found = [(each.by, each.about) for each in events.recent(999, kind="look")]
    assert found == [
        ("otto", "orders/billing"),
        ("olga", "orders/search"),
        ("olga", "orders/billing"),
    ]
    reader._looked["olga", "orders/billing"] -= parked.LOOK_S
    await reader.read("orders/billing", olga)
    assert len(events.recent(999, kind="look")) == 4


@given(
    puts=st.lists(st.tuples(st.integers(0, 400), st.none() | st.integers(0, 9)), max_size=40),
    now=st.integers(0, 500),
    span=st.integers(1, 300),
)
def test_a_ring_tells_the_last_value_of_each_step_that_it_keeps(
    puts: list[tuple[int, int | None]], now: int, span: int
) -> None:
    ring, oracle, last = Ring(5, 20), dict[int, int | None](), 0
    for at, value in puts:
        ring.put(at, value)
        step = at // 5
        if step >= last:
            # None says nothing about a step that has a value already.
            oracle[step] = oracle.get(step) if value is None and step == last else value
            last = step
    told = ring.read(now, span)
    assert len(told.values) == min(20, -(-span // 5))
    for i, found in enumerate(told.values):
        step = told.begin_s // 5 + i
        assert found == (oracle.get(step) if last - 20 < step <= last else None)


def test_history_is_bounded_by_names() -> None:
    history = History(1)
    for number in range(NAMES_MAX + 5):
        history.put(str(number), 10 * FINE_S, (1.0,))
    assert history.of(str(NAMES_MAX + 1)) is None
    history.put("later", 2 * 86_400, (1.0,))
    assert history.of("later") is not None


def test_files_of_others_are_those_of_the_manifest() -> None:
    assert vendor.faults() == []
    assert all(each["licence"] for each in vendor.manifest())
    licences = {name for each in vendor.manifest() for name in each["files"] if "LICENSE" in name}
    assert len(licences) == len(vendor.manifest())


def test_another_package_of_the_same_name_is_refused() -> None:
    with pytest.raises(NotVendored, match="not the one of the MANIFEST"):
        vendor.unpack(vendor.manifest()[0], os.urandom(100))


def packed(files: dict[str, bytes]) -> bytes:
    """Return a package of the registry."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, body in files.items():
            about = tarfile.TarInfo(f"package/{name}")
            about.size = len(body)
            archive.addfile(about, io.BytesIO(body))
    return whole.getvalue()


class Registry:
    """A registry that an `npm` of ours fetches one package from, and a folder with its manifest."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.vendored, self._bin = folder / "vendor", folder / "bin"
        self.vendored.mkdir()
        self._bin.mkdir()
        self.tarball = folder / "made.tgz"
        self.tarball.write_bytes(packed({"dist/a.js": b"one"}))
        integrity = base64.b64encode(hashlib.sha512(self.tarball.read_bytes()).digest()).decode()
        (self.vendored / "MANIFEST").write_text(
            f"""[[package]]
name = "made"
version = "1.0.0"
licence = "MIT"
integrity = "sha512-{integrity}"
[package.files."a.js"]
from = "dist/a.js"
sha256 = "{hashlib.sha256(b"one").hexdigest()}"
"""
        )
        monkeypatch.setenv("PATH", f"{self._bin}:{os.environ['PATH']}")
        monkeypatch.setattr(vendor, "FOLDER", self.vendored)
        for function in (vendor.manifest, vendor.faults):
            monkeypatch.setattr(function, "__defaults__", (self.vendored,))
        self.npm(f'cp {self.tarball} "$4/made-1.0.0.tgz"')

    def npm(self, line: str) -> None:
        path = self._bin / "npm"
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    return Registry(tmp_path, monkeypatch)


def test_files_of_others_are_put_in_place_from_the_registry(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    vendor.main()
    assert (registry.vendored / "a.js").read_bytes() == b"one"
    assert capsys.readouterr().out == "made 1.0.0 (MIT)\n"


def test_what_is_not_of_the_manifest_is_told_and_not_put_in_place(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    (registry.vendored / "stray.js").write_bytes(b"whose?")
    with pytest.raises(SystemExit, match=r"not of the MANIFEST: stray\.js"):
        vendor.main()
    (registry.vendored / "a.js").unlink()
    registry.tarball.write_bytes(packed({"dist/a.js": b"another"}))
    with pytest.raises(SystemExit, match=r"made@1\.0\.0: the registry's package is not the one"):
        vendor.main()
    registry.npm("echo 'no such package' >&2; exit 1")
    with pytest.raises(SystemExit, match=r"npm pack made@1\.0\.0: no such package"):
        vendor.main()
    monkeypatch.setenv("PATH", str(registry.vendored))
    with pytest.raises(SystemExit, match="npm: No such file or directory"):
        vendor.main()
    assert not (registry.vendored / "a.js").exists()


def test_a_file_that_changed_in_its_package_is_refused(registry: Registry) -> None:
    (package,) = vendor.manifest()
    package["files"]["a.js"]["sha256"] = "0" * 64
    with pytest.raises(NotVendored, match=r"dist/a\.js is not the one of the MANIFEST"):
        vendor.unpack(package, registry.tarball.read_bytes())
