from tests.support.trials.soak import ALL_FAULTS, draws

NAMES = ["mb1", "mb2", "mb3"]


def test_the_same_seed_draws_the_same_faults() -> None:
    one, two, other = draws(7, NAMES), draws(7, NAMES), draws(8, NAMES)
    first = [one() for _ in range(50)]
    assert first == [two() for _ in range(50)]
    assert first != [other() for _ in range(50)]


def test_no_fault_comes_again_before_all_have_come() -> None:
    draw = draws(1, NAMES)
    for _ in range(5):
        assert {draw()[0] for _ in ALL_FAULTS} == set(ALL_FAULTS)


def test_every_broker_has_its_share() -> None:
    draw = draws(3, NAMES)
    targets = [draw()[1] for _ in range(300)]
    assert all(targets.count(name) > 60 for name in NAMES)
