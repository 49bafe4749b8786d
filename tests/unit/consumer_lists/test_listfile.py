"""List files: read, edited, shown."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from consumer_lists import listfile
from consumer_lists.errors import EditRefused, Locked
from consumer_lists.listfile import advice
from consumer_lists.nodes import Client, Served
from consumer_lists.show import behind, client_table, differences, node_table, plain
from messagebus.broker import LIST_BYTES_MAX, Broker, BrokerList, ListedBroker
from messagebus.errors import ListInvalid
from tests.support.lists import brokers, list_texts

TEXT = "# generation: 1\nmb1:5672\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "list.txt"
    path.write_text(TEXT)
    return path


def _add(text: str) -> str:
    return listfile.add(text, Broker("mb2"))


def test_an_edit_is_written(path: Path) -> None:
    assert listfile.change(path, _add).generation == 2
    assert path.read_text() == "# generation: 2\nmb1:5672\nmb2:5672\n"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_refused_edit_leaves_the_file(path: Path) -> None:
    inode = path.stat().st_ino
    with pytest.raises(EditRefused):
        listfile.change(path, lambda text: listfile.remove(text, Broker("mb1")))
    assert (path.read_text(), path.stat().st_ino) == (TEXT, inode)


def test_an_edit_that_makes_a_bad_list_is_not_written(path: Path) -> None:
    with pytest.raises(ListInvalid):
        listfile.change(path, lambda text: text + "mb1:0\n")
    assert path.read_text() == TEXT


def test_a_second_operator_is_refused_with_the_name_of_the_first(path: Path) -> None:
    with listfile.locked(path), pytest.raises(Locked, match=f"process {os.getpid()}"):
        listfile.change(path, _add)
    assert listfile.change(path, _add).generation == 2


def test_on_a_full_disk_the_list_stays_as_it_is_and_the_error_names_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path.with_name(f".{path.name}.lock").symlink_to("/dev/full")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as fault:
            listfile.change(path, _add)
    assert fault.value.filename == str(path)
    assert path.read_text() == TEXT
    assert listfile.change(path, _add).generation == 2


def test_the_lock_ends_with_an_error(path: Path) -> None:
    with pytest.raises(EditRefused):
        listfile.change(path, lambda text: listfile.drain(text, Broker("mb9")))
    assert listfile.change(path, _add).generation == 2


@pytest.mark.parametrize(
    ("raw", "line"), [(b"mb1\nmb\xff\n", 2), (b"\xef\xbb\xbfmb1\n", 1), (b"mb1\nmb2:x\n", 2)]
)
def test_a_bad_line_is_named(path: Path, raw: bytes, line: int) -> None:
    path.write_bytes(raw)
    with pytest.raises(ListInvalid) as raised:
        listfile.read(path)
    assert raised.value.line == line


def test_a_file_that_is_no_list_is_not_read_whole(path: Path) -> None:
    path.write_bytes(b"#" * (LIST_BYTES_MAX + 1))
    with pytest.raises(ListInvalid, match="more than"):
        listfile.read(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        listfile.read(tmp_path / "none")


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A list in a work tree, committed."""
    folder = tmp_path / "my lists"
    folder.mkdir()
    path = folder / "prod.txt"
    path.write_text("mb1\n")
    git(folder, "init", "-q")
    git(folder, "add", "prod.txt")
    git(folder, "commit", "-qm", "x")
    return path


def test_a_changed_list_is_to_be_committed(kept: Path) -> None:
    kept.write_text("mb1\nmb2\n")
    said = advice(kept, "prod: generation 8")
    assert said == f"to keep: git -C '{kept.parent}' commit -m 'prod: generation 8' -- prod.txt"


def test_a_new_list_is_to_be_added_first(kept: Path) -> None:
    new = kept.with_name("test.txt")
    new.write_text("mb1\n")
    said = advice(new, "test: generation 1")
    assert f"git -C '{kept.parent}' add test.txt && git -C" in said


def test_what_is_said_keeps_the_list(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "x")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "x@example")
    kept.write_text("mb1\nmb2\n")
    command = advice(kept, "prod: generation 8").removeprefix("to keep: ")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert advice(kept, "again") == ""


def test_what_git_ignores_is_none_of_our_business(kept: Path) -> None:
    kept.with_name(".gitignore").write_text("local.txt\n")
    kept.with_name("local.txt").write_text("mb1\n")
    assert advice(kept.with_name("local.txt"), "x") == ""


def test_outside_of_version_control_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert advice(tmp_path / "x.txt", "x") == f"{tmp_path}/x.txt is under no version control"


def test_without_git_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert advice(tmp_path / "x.txt", "x") == ""


COMMENTED = """\
# cluster: prod
# generation: 7
# the old hall
mb1.example:5672
mb2.example:5672 agent=9 # noisy
"""
MB1, MB2, MB3 = (Broker(f"mb{number}.example") for number in (1, 2, 3))


def test_adding_appends_a_line_and_raises_the_generation() -> None:
    changed = listfile.add(COMMENTED, MB3, agent_port=99)
    assert changed == COMMENTED.replace("7\n", "8\n", 1) + "mb3.example:5672 agent=99\n"


def test_draining_keeps_what_else_is_on_the_line() -> None:
    assert "\nmb2.example:5672 agent=9 draining  # noisy\n" in listfile.drain(COMMENTED, MB2)


def test_draining_is_taken_back() -> None:
    drained = listfile.drain(COMMENTED, MB1)
    assert (
        BrokerList.parse(listfile.ready(drained, MB1)).listed == BrokerList.parse(COMMENTED).listed
    )


def test_comments_outlive_an_edit() -> None:
    assert "# the old hall\n" in listfile.remove(COMMENTED, MB1)


def test_a_list_without_a_generation_gets_the_first() -> None:
    assert listfile.add("mb1\n", MB2) == "# generation: 1\nmb1\nmb2.example:5672\n"


def test_the_generation_comes_after_the_cluster() -> None:
    assert listfile.add("\n# cluster: x\nmb1", MB2).startswith(
        "\n# cluster: x\n# generation: 1\nmb1\n"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda: listfile.add(COMMENTED, MB1), "mb1.example:5672 is on the list"),
        (
            lambda: listfile.add(listfile.drain(COMMENTED, MB1), MB1),
            "on the list and draining; see `ready`",
        ),
        (lambda: listfile.drain(COMMENTED, MB3), "is not on the list: mb1.example:5672, mb2"),
        (lambda: listfile.drain(listfile.drain(COMMENTED, MB1), MB1), "is draining already"),
        (lambda: listfile.ready(COMMENTED, MB1), "is not draining"),
        (lambda: listfile.remove(COMMENTED, MB3), "is not on the list"),
        (lambda: listfile.remove("mb1.example\n", MB1), "is the last broker on the list"),
        (lambda: listfile.with_generation(COMMENTED, 0), "generation 0"),
        (lambda: listfile.with_generation(COMMENTED, 10**18), "generation 1000000000000000000"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(change: Callable[[], str], told: str) -> None:
    with pytest.raises(EditRefused, match=told):
        change()


@pytest.mark.parametrize("change", [listfile.add, listfile.drain, listfile.ready, listfile.remove])
def test_a_bad_list_is_not_edited(change: Callable[[str, Broker], str]) -> None:
    with pytest.raises(ListInvalid, match="line 2"):
        change("mb1\nmb2 drainin\n", MB1)


def _oracle(before: BrokerList, order: str, broker: Broker) -> BrokerList | None:
    """Return the list after the order; None when it is refused."""
    entries = {entry.broker: entry for entry in before}
    match order, entries.get(broker):
        case "add", None:
            entries[broker] = ListedBroker(broker=broker)
        case ("drain", ListedBroker(draining=False)) | ("ready", ListedBroker(draining=True)):
            now = not entries[broker].draining
            entries[broker] = dataclasses.replace(entries[broker], draining=now)
        case "remove", ListedBroker() if len(entries) > 1:
            del entries[broker]
        case _:
            return None
    return dataclasses.replace(
        before, generation=before.generation + 1, listed=tuple(entries.values())
    )


@given(list_texts(), st.sampled_from(["add", "drain", "ready", "remove"]), brokers, st.data())
def test_the_text_says_what_the_oracle_says(
    text: str, order: str, stranger: Broker, data: st.DataObject
) -> None:
    before = BrokerList.parse(text)
    broker = data.draw(st.sampled_from([*(entry.broker for entry in before), stranger]))
    wanted = _oracle(before, order, broker)
    try:
        changed = BrokerList.parse(getattr(listfile, order)(text, broker))
    except EditRefused:
        assert wanted is None
    else:
        assert changed == wanted


@given(list_texts(), st.integers(1, listfile.GENERATION_MAX))
def test_only_the_generation_changes(text: str, generation: int) -> None:
    before = BrokerList.parse(text)
    changed = BrokerList.parse(listfile.with_generation(text, generation))
    assert changed == dataclasses.replace(before, generation=generation)


OURS = BrokerList.parse("# cluster: prod\n# generation: 7\nmb1\nmb2\n")


def _served(text: str) -> Served:
    return Served(node="a", served=BrokerList.parse(text))


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (Served(node="a", served=OURS), []),
        (Served(node="a", fault="Connection refused"), ["serves no list: Connection refused"]),
        (
            _served("# cluster: test\n# generation: 6\nmb1 draining\nmb3\n"),
            [
                "generation 6 instead of 7",
                "cluster 'test' instead of 'prod'",
                "lacks mb2:5672",
                "has mb3:5672 too",
                "says 'mb1:5672 draining' instead of 'mb1:5672'",
            ],
        ),
        (_served("# cluster: prod\n# generation: 7\nmb2\nmb1\n"), ["another order"]),
    ],
)
def test_differences_are_told_in_sentences(node: Served, told: list[str]) -> None:
    assert differences(OURS, node) == told


def test_programs_get_nodes_clients_and_who_was_silent() -> None:
    client = Client(id="x", subscription="orders/billing", applied=6, age_s=1.5)
    shown = plain(OURS, [_served("mb1\n")], [client], {"b": "Connection refused"})
    assert shown["generation"] == 7
    assert shown["brokers"][0]["broker"] == "mb1:5672"
    assert shown["brokers"][0]["agent"] == "http://mb1:8081"
    assert shown["nodes"] == [{"name": "a", "generation": 0, "same": False, "fault": ""}]
    assert shown["clients"][0]["applied"] == 6
    assert shown["silent"] == {"b": "Connection refused"}


def test_programs_get_https_addresses_where_agents_speak_tls() -> None:
    shown = plain(OURS, [], [], {}, tls=True)
    assert shown["brokers"][0]["agent"] == "https://mb1:8081"


def test_people_see_who_is_behind() -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    clients = [Client(id="x", subscription="orders/billing", applied=6, age_s=1.5)]
    console.print(client_table(OURS, clients))
    console.print(
        node_table(
            OURS,
            [Served(node="a", address="mb1:5672", served=OURS), Served(node="b", fault="dead")],
        )
    )
    shown = console.export_text()
    assert "6 (behind)" in shown
    assert "same" in shown
    assert "mb1:5672" in shown
    assert "dead" in shown


def test_who_is_behind_is_told_in_sentences() -> None:
    late = Client(id="x", subscription="", applied=0, age_s=1.5)
    good = Client(id="y", subscription="orders/billing", applied=7, age_s=1)
    assert behind(OURS, [late, good]) == [
        "client x of no subscription: applied 0 instead of 7, heard of 2 s ago"
    ]


def test_ten_thousand_clients_fit_a_screen() -> None:
    clients = [
        Client(id=f"c{number}", subscription="orders/billing", applied=7 - (number < 2), age_s=1)
        for number in range(10_000)
    ]
    table = client_table(OURS, clients)
    assert table.row_count == 2
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(table)
    shown = console.export_text()
    assert "c0 (1 s ago), c1 (1 s ago)" in shown
    assert "c4 (1 s ago) and 9995 more" in shown


@pytest.mark.parametrize(
    "text", ["boom[/x]", "[red]x", "x\x1b]0;title\x07\x1b[2J", "a\nb", "\x9b2J"]
)
def test_what_a_client_calls_itself_is_shown_as_it_is(text: str) -> None:
    client = Client(id=text, subscription=text, applied=7, age_s=1)
    out = io.StringIO()
    console = Console(file=out, width=160)
    console.print(client_table(OURS, [client]))
    console.print(node_table(OURS, [Served(node=text, fault=text)]))
    shown = text.encode("unicode_escape").decode()
    assert out.getvalue().count(shown) == 4
    assert out.getvalue().replace("\n", "").isprintable()
