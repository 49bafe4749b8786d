"""Addresses of Hadoop do what paths do: the same questions to both, over one folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark.lake.ingest import ingest, plan
from spark.lake.places import (
    Remote,
    address_of,
    digest_of,
    identity_of,
    pattern_of,
    place_of,
    remove,
    write_whole,
)
from spark.lake.tables import Lake
from spark.measures.run import Run
from tests.support.events import Faults, write_run

pytestmark = pytest.mark.usefixtures("session")


def remote(path: Path) -> Remote:
    """Return the address of a folder here, which Hadoop serves as any other."""
    return Remote(f"file:{path}")


def names(found: object) -> list[str]:
    return sorted(each.name for each in cast("list[Path]", found))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("out/lake", Path("out/lake")),
        ("/x/tables", Path("/x/tables")),
        ("file:///x/tables", Path("/x/tables")),
        ("file:/x/tables", Path("/x/tables")),
        ("s3a://bucket/lake", Remote("s3a://bucket/lake")),
        ("hdfs://nn:8020/lake", Remote("hdfs://nn:8020/lake")),
        ("C:lake", Path("C:lake")),
    ],
)
def test_an_address_is_a_path_of_this_machine_or_one_of_hadoop(text: str, place: object) -> None:
    assert place_of(text) == place


def test_an_address_answers_as_a_path_does(tmp_path: Path) -> None:
    folder = tmp_path / "run [1] of 2"
    (folder / "date=1" / "run_id=a").mkdir(parents=True)
    (folder / "date=2" / "run_id=a").mkdir(parents=True)
    (folder / "events-1.ndjson").write_text("one\ntwo\n")
    there = remote(folder)
    assert (there.name, there.suffix, (there / "x.json").suffix) == (folder.name, "", ".json")
    assert (there / "x").parent == there
    for name in ("events-1.ndjson", "date=1", "nothing"):
        mine, theirs = folder / name, there / name
        assert theirs.exists() == mine.exists()
        assert theirs.is_dir() == mine.is_dir()
        assert theirs.is_file() == mine.is_file()
    assert names(there.iterdir()) == names(folder.iterdir())
    for pattern in ("*=*", "date=*/run_id=a", "*.ndjson", "none-*"):
        assert names(there.glob(pattern)) == names(folder.glob(pattern))
    assert pattern_of(there).startswith("file:")


def test_a_file_is_read_in_parts_digested_and_written_whole(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    (tmp_path / "big").write_bytes(content)
    there = remote(tmp_path)
    assert digest_of(cast(Path, there / "big")) == (
        hashlib.sha256(content).hexdigest(),
        len(content),
    )
    with (there / "big").open() as file:
        file.seek(-300, 2)
        assert file.read() == content[-300:]
        file.seek(10)
        assert file.read(5_000_000) == content[10:5_000_010]
    for text in ("first", "second, longer"):
        write_whole(cast(Path, there / "note.json"), text.encode())
        assert (tmp_path / "note.json").read_text() == (there / "note.json").read_text() == text
    assert names(tmp_path.glob("*note*[!c]")) == ["note.json"]  # a sum of Hadoop is beside it
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "t.parquet")
    with (there / "t.parquet").open() as file:
        assert pq.read_schema(file).names == ["a"]
    (there / "folder").mkdir(parents=True, exist_ok=True)
    before = identity_of(cast(Path, there / "folder"))
    (there / "folder" / "x").touch()
    assert identity_of(cast(Path, there / "folder")) != before
    (there / "folder" / "x").unlink()
    remove(cast(Path, there / "folder"))
    assert not (tmp_path / "folder").exists()


def test_what_is_not_there_or_unknown_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        (remote(tmp_path) / "nothing").open()
    with pytest.raises(FileNotFoundError):
        [*(remote(tmp_path) / "nothing").iterdir()]
    for address in ("nosuch://host/x", "hdfs://127.0.0.1:1/x"):
        with pytest.raises(OSError, match=address.partition(":")[0]) as told:
            Remote(address).exists()
        assert "\n" not in str(told.value)


def test_a_run_at_an_address_gives_the_same_rows_as_at_a_path(
    session: SparkSession, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", messages=100, faults=Faults(cut_lines=1))
    found = []
    for lake, folder in (
        (Lake(tmp_path / "here"), tmp_path / "run"),
        (Lake(cast(Path, remote(tmp_path / "there"))), cast(Path, remote(tmp_path / "run"))),
    ):
        lake.check()
        ingest(session, lake, plan(folder, lake))
        again = plan(folder, lake)
        assert not again.new
        ingested = ingest(session, lake, again)
        assert lake.runs() == [ingested.manifest.run_id]
        run = Run(session, lake, ingested)
        found.append(
            [sorted(map(str, run.events(kind).collect())) for kind in ("published", "delivered")]
        )
        assert lake.days(ingested.manifest.run_id, ["published"])
    assert found[0] == found[1]
    assert found[0][0]
    assert address_of(tmp_path / "run").startswith("file:///")
