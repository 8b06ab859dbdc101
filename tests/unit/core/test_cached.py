"""Properties computed once: of one object in one thread, while another thread computes another object's."""

import threading
from concurrent.futures import ThreadPoolExecutor

from persist.core.cached import cached_property

LIMIT_SECONDS = 60.0


class Slow:
    """Counts how often it was computed, and computes when it may."""

    def __init__(self) -> None:
        self.computed = 0
        self.begun, self.may_end = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> int:
        """How often it was computed."""
        self.begun.set()
        assert self.may_end.wait(LIMIT_SECONDS)
        self.computed += 1
        return self.computed


def test_one_object_does_not_wait_for_another() -> None:
    first, second = Slow(), Slow()
    second.may_end.set()
    with ThreadPoolExecutor(2) as pool:
        computing = pool.submit(lambda: first.value)
        assert first.begun.wait(LIMIT_SECONDS)
        try:
            assert pool.submit(lambda: second.value).result(LIMIT_SECONDS / 2) == 1
        finally:
            first.may_end.set()
        assert computing.result(LIMIT_SECONDS) == 1


def test_is_computed_once_and_documented() -> None:
    slow = Slow()
    slow.may_end.set()
    assert [slow.value, slow.value, slow.computed] == [1, 1, 1]
    assert Slow.__dict__["value"].__doc__ == "How often it was computed."
