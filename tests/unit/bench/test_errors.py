from bench.errors import BenchError, InputInvalid, Interrupted


def test_each_error_has_its_exit_code() -> None:
    assert [kind.exit_code for kind in (BenchError, InputInvalid, Interrupted)] == [1, 2, 130]
