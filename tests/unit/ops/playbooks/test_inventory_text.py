from __future__ import annotations

import tomllib

import pytest

from ops.errors import OpsError
from ops.playbooks.inventory_text import broker_table, with_broker, with_host, without_broker

TEXT = """\
cluster = "local"  # ours
[balancer]
amqp = "a:1"

[[brokers]]
name = "mb1"
address = "a:1"

[[brokers]]
# the big one
name = "mb2"
address = "b:1"

[[ brokers ]]
name = "mb3"
"""


@pytest.mark.parametrize("name", ["mb1", "mb2", "mb3"])
def test_one_broker_is_taken_out_and_the_rest_says_the_same(name: str) -> None:
    edited = without_broker(TEXT, name)
    before, after = tomllib.loads(TEXT), tomllib.loads(edited)
    assert [one["name"] for one in after["brokers"]] == [
        one["name"] for one in before["brokers"] if one["name"] != name
    ]
    assert after["balancer"] == before["balancer"]
    assert "# ours" in edited


def test_the_last_broker_can_be_taken_out() -> None:
    text = without_broker(without_broker(without_broker(TEXT, "mb1"), "mb3"), "mb2")
    assert "brokers" not in tomllib.loads(text)


@pytest.mark.parametrize("name", ["mb1", "mb2", "mb3"])
@pytest.mark.parametrize("gap", ["", "\n", "\n\n"])
def test_every_comment_outside_of_a_table_stays(name: str, gap: str) -> None:
    text = "# the cluster\n" + "\n".join(
        f'{gap}# above mb{number}\n  # and: [[brokers]]\n[[brokers]]  # header\nname = "mb{number}"\n'
        f"# inside\nport = {number}  # the port\n{gap}# below mb{number}\n"
        for number in (1, 2, 3)
    )
    before, after = text.splitlines(), without_broker(text, name).splitlines()
    for comment in [
        line for line in before if line.lstrip().startswith("# ") and "inside" not in line
    ]:
        assert after.count(comment) == before.count(comment)
    assert after.count("# inside") == 2
    assert [one["name"] for one in tomllib.loads("\n".join(after))["brokers"]] == [
        each for each in ("mb1", "mb2", "mb3") if each != name
    ]


def test_a_text_of_many_lines_that_looks_like_comments_is_not_cut() -> None:
    text = '[[brokers]]\nname = "mb1"\nnote = """\n# not one\n"""\n\n# mine\n'
    assert without_broker(text, "mb1") == "\n# mine\n"
    with pytest.raises(OpsError, match="edit the file"):
        without_broker('[[brokers]]\nname = "mb1"\nnote = """\n[x]"""\n', "mb1")


def test_an_unknown_broker_changes_nothing() -> None:
    assert without_broker(TEXT, "mb9") == TEXT


def test_what_cannot_be_edited_surely_is_not_edited() -> None:
    with pytest.raises(OpsError, match="edit the file"):
        without_broker('brokers = [{name = "mb1"}, {name = "mb2"}]', "mb1")


def test_a_broker_is_moved_and_nothing_else_is_touched() -> None:
    text = (
        'cluster = "c"  # ours\n\n[[brokers]]\nname = "mb1"\nhost = "db1"\n\n'
        '[[brokers]]\nname = "mb2"\n\n[[hosts]]\nname = "mb1"\n'
    )
    moved = with_host(text, "mb1", "db2")
    assert moved == text.replace("db1", "db2")
    given = with_host(text, "mb2", "db2")
    assert given == text.replace(
        '[[brokers]]\nname = "mb2"', '[[brokers]]\nhost = "db2"\nname = "mb2"'
    )
    assert with_host(text, "mb1", "db1") == with_host(text, "mb9", "db1") == text


def test_a_broker_that_is_written_in_another_way_is_not_guessed_at() -> None:
    with pytest.raises(OpsError, match="edit the file"):
        with_host('brokers = [{name = "mb1"}]', "mb1", "db2")


@pytest.mark.parametrize("name", ["mb1", "mb2", "mb3"])
def test_what_was_taken_out_is_put_back(name: str) -> None:
    table = broker_table(TEXT, name)
    again = tomllib.loads(with_broker(without_broker(TEXT, name), table))
    assert sorted(map(str, again["brokers"])) == sorted(map(str, tomllib.loads(TEXT)["brokers"]))


def test_putting_back_twice_changes_nothing() -> None:
    assert with_broker(TEXT, broker_table(TEXT, "mb2")) == TEXT
    assert broker_table(TEXT, "mb9") == ""


@pytest.mark.parametrize(
    "table",
    [
        "",
        "[[brokers]]\n",
        "brokers = 1",
        "[[brokers]",
        "[[brokers]]\nname='a'\n[[brokers]]\nname='b'",
    ],
)
def test_what_is_no_table_of_a_broker_is_refused(table: str) -> None:
    with pytest.raises(OpsError, match="not one"):
        with_broker(TEXT, table)


def test_a_broker_goes_with_its_mirror() -> None:
    mirror = '\n[[mirrors]]\nname = "mb2"\nport = 7788\n\n[[mirrors]]\nname = "mb3"\n'
    left = tomllib.loads(without_broker(TEXT + mirror, "mb2"))
    assert left["mirrors"] == [{"name": "mb3"}]
    assert [each["name"] for each in left["brokers"]] == ["mb1", "mb3"]
