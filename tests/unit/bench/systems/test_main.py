import pytest

from bench.systems.__main__ import SYSTEMS, main


def test_a_client_that_there_is_not_is_one_clear_line() -> None:
    with pytest.raises(SystemExit, match="pika_async"):
        main("nothing", "{}")
    assert len(set(SYSTEMS)) == len(SYSTEMS)
