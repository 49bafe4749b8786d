"""`messagebus explain`: the sections of the page of errors, where there is only the package."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from messagebus import errors
from messagebus.__main__ import cli


def explained(word: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["explain", word])
    return done.exit_code, done.output


@pytest.mark.parametrize("word", ["NotReady", "notready", errors.NotReady.docs])
def test_an_error_is_explained_by_its_name_and_by_the_address_in_a_log(word: str) -> None:
    code, text = explained(word)
    assert code == 0
    assert text.startswith("NotReady\n\n- What happened: ")
    assert "\n- Remedy: " in text
    assert "](" not in text, "links lead nowhere there"
    assert "Refused" not in text, "the next section"


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "MessageBusError"])
def test_the_command_in_an_error_explains_it(name: str) -> None:
    command = errors.remedy_of(getattr(errors, name).__new__(getattr(errors, name))).split()
    assert command[:2] == ["messagebus", "explain"]
    assert explained(command[2])[1].startswith(f"{name}\n")


def test_an_unknown_error_is_one_line_with_a_suggestion() -> None:
    code, text = explained("notredy")
    assert code == 2
    assert "no error 'notredy'; did you mean 'notready'?" in text


def test_a_link_is_shown_with_the_path_of_its_page() -> None:
    assert "A host is dead (docs/OPERATIONS.md#a-host-is-dead)." in explained("LinkLost")[1]


def test_what_resembles_no_error_is_answered_with_their_names() -> None:
    assert "BacklogFull, SpoolFull" in explained("xyzzy")[1]
