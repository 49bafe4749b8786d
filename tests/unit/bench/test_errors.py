from bench.errors import CODES, BenchError, DoesNotHold, InputInvalid, Interrupted
from messagebus.commands.exits import code_of


def test_each_error_has_its_exit_code() -> None:
    errors = (BenchError(), InputInvalid(), DoesNotHold(), Interrupted())
    assert [code_of(each, CODES) for each in errors] == [1, 2, 7, 130]
