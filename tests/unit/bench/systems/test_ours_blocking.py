from bench.systems.ours_blocking import shares


def test_threads_share_the_work_evenly_and_leave_nothing() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]
    assert shares(8, 8) == [1] * 8
    assert sum(shares(30_001, 64)) == 30_001
