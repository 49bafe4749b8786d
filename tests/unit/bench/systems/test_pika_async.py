from bench.systems.pika_async import Confirms


def sent(*tags: int) -> Confirms:
    confirms = Confirms()
    for tag in tags:
        confirms.sent(tag, f"m{tag}")
    return confirms


def test_a_confirm_for_many_settles_all_up_to_it_and_none_twice() -> None:
    confirms = sent(1, 2, 3, 4)
    confirms.settle(2, False, "confirmed")
    confirms.settle(3, True, "confirmed")
    assert confirms.outcomes == {"m1": "confirmed", "m2": "confirmed", "m3": "confirmed"}
    assert confirms.open == {4: "m4"}


def test_what_comes_back_is_unroutable_although_it_is_confirmed() -> None:
    confirms = sent(1, 2)
    confirms.returned("m1")
    confirms.settle(2, True, "confirmed")
    assert confirms.outcomes == {"m1": "unroutable", "m2": "confirmed"}
