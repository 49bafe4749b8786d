"""Promise: uploads that are killed and started again bring each recorded row to the store, once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from messagebus import Message, Published
from messagebus.recording.recorder import Recorder
from messagebus.stats import Durability, Outcome
from messagebus.tools.uploads import Uploads
from tests.support.eventually import eventually
from tests.support.killed import Killed
from tests.support.object_store import KEY, SECRET, ObjectStore

WITHIN_S = 120.0
ROWS, KILLS, FILE_BYTES = 20_000, 4, 100_000
# Of its own: what moto's servers of one process keep is one.
ADDRESS, PREFIX = "s3a://lake/uploads/run-1", "uploads/run-1/"
UPLOADER = """
import sys, threading
from messagebus.tools.uploads import Uploads
uploads = Uploads(sys.argv[1], sys.argv[2], every_s=0.05)
uploads.start()
threading.Event().wait()
"""


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore().running() as made:
        yield made


def record(recorder: Recorder, numbers: range) -> None:
    for number in numbers:
        message = Message(body=b"%d" % number, message_id=f"{number:032x}")
        done = Published(
            message.message_id, Outcome.CONFIRMED, Durability.FSYNC, "mb1:5672", 1, 5, 7
        )
        recorder.published("orders", recorder.publishing("orders", message), done)


def names(store: ObjectStore) -> list[str]:
    pages = store.client.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix=PREFIX)
    return [each["Key"].removeprefix(PREFIX) for page in pages for each in page.get("Contents", ())]


def arrived(store: ObjectStore, count: int) -> bool:
    return len(names(store)) >= count


def lines(store: ObjectStore, name: str) -> list[dict[str, object]]:
    body = store.client.get_object(Bucket="lake", Key=PREFIX + name)["Body"].read()
    return [json.loads(line) for line in body.splitlines()]


@pytest.mark.guarantee("recorder-counts-losses")
def test_an_uploader_that_is_killed_and_repeated_brings_each_row_to_a_busy_store_once(
    tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": store.address,
    }
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    folder, share = tmp_path / "run", ROWS // (KILLS + 1)
    store.busy_every = 9
    with Recorder(folder, run_id="run-1", file_bytes_max=FILE_BYTES, files_max=1_000) as recorder:
        for turn in range(KILLS):
            record(recorder, range(turn * share, (turn + 1) * share))
            known = len(names(store))
            uploader = Killed(
                ["-c", UPLOADER, str(folder), ADDRESS],
                os.environ | environ,
                tmp_path / f"{turn}.log",
            )
            eventually(partial(arrived, store, known + 2), within_s=WITHIN_S)
            uploader.send(signal.SIGKILL)
            uploader.end()
        record(recorder, range(KILLS * share, ROWS))
    left = [*folder.glob("*.ndjson")]
    assert left, "all was uploaded before the last kill"
    uploads = Uploads(folder, ADDRESS)
    uploads.stop(WITHIN_S)
    assert uploads.stats().waiting == 0
    found = Counter(
        row["message_id"]
        for name in names(store)
        if name.startswith("published-")
        for row in lines(store, name)
        if "anchor" not in row
    )
    assert recorder.stats().written == ROWS
    assert found == Counter(f"{number:032x}" for number in range(ROWS))
    manifests = [
        json.loads(store.client.get_object(Bucket="lake", Key=PREFIX + name)["Body"].read())
        for name in names(store)
        if name.startswith("manifest-")
    ]
    assert [each["complete"] for each in manifests] == [True]
    assert [each["recorders"][recorder.name]["files_deleted"] for each in manifests] == [0]
