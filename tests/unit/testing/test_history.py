"""The checker accepts every linearizable history and names what is wrong with the others."""

import pytest

from persist.testing.history import Operation, violations

K = "k"


def cas(expected: int, invoked: int, returned: int | None, data: bytes = b"", *, ok: bool = True) -> Operation:
    data = data or b"%d" % (expected + 1)
    return Operation(kind="cas", key=K, invoked=invoked, returned=returned, expected=expected, data=data, ok=ok)


def lost(expected: int, invoked: int, returned: int) -> Operation:
    return cas(expected, invoked, returned, b"lost", ok=False)


def head(seqno: int, invoked: int, returned: int, data: bytes | None = None) -> Operation:
    seen = () if seqno < 0 else ((seqno, b"%d" % seqno if data is None else data),)
    return Operation(kind="head", key=K, invoked=invoked, returned=returned, seen=seen)


def scan(invoked: int, returned: int, *seqnos: int) -> Operation:
    seen = tuple((seqno, b"%d" % seqno) for seqno in seqnos)
    return Operation(kind="scan", key=K, invoked=invoked, returned=returned, seen=seen)


SOUND = {
    "nothing": [],
    "one after the other": [head(-1, 0, 1), cas(-1, 2, 3), head(0, 4, 5), cas(0, 6, 7), scan(8, 9, 0, 1)],
    "read of a write in flight": [cas(-1, 0, 9), head(0, 1, 2)],
    "no read of a write in flight": [cas(-1, 0, 9), head(-1, 1, 2)],
    "two writers race": [cas(-1, 0, 5), lost(-1, 1, 6)],
    "refused by a write in flight": [cas(-1, 0, 9), lost(-1, 1, 2)],
    "refused with a later expectation": [cas(-1, 0, 1), lost(5, 2, 3)],
    "unknown, happened": [cas(-1, 0, None), head(0, 5, 6), cas(0, 7, 8)],
    "unknown, did not happen": [cas(-1, 0, None, b"x"), head(-1, 5, 6), cas(-1, 7, 8), head(0, 9, 10)],
    "unknown, happened late": [cas(-1, 0, None, b"x"), head(-1, 5, 6), head(0, 7, 8, b"x")],
    "refused by an unknown": [cas(-1, 0, 1), cas(0, 2, None), lost(0, 3, 4)],
}

WRONG = {
    "won twice": ([cas(-1, 0, 3), cas(-1, 1, 4, b"other")], "won twice"),
    "stale head": ([cas(-1, 0, 1), cas(0, 2, 3), head(0, 4, 5)], "after 1 was known"),
    "head went back to nothing": ([cas(-1, 0, 1), head(-1, 4, 5)], "after 0 was known"),
    "heads run backwards": ([cas(-1, 0, None), head(0, 1, 2), head(-1, 3, 4)], "after 0 was known"),
    "different bytes": ([cas(-1, 0, 1), head(0, 2, 3, b"y")], "no writer won it with"),
    "bytes change": ([cas(-1, 0, None, b"x"), head(0, 2, 3, b"x"), head(0, 4, 5, b"y")], "different bytes"),
    "read of nothing written": ([head(3, 0, 1)], "no writer won it with"),
    "read before written": ([head(0, 0, 1), cas(-1, 2, 3)], "before it was written"),
    "gap": ([cas(-1, 0, 1), cas(1, 2, 3, b"2")], "skipped"),
    "scan with a gap": ([cas(-1, 0, 1), cas(0, 2, 3), cas(1, 4, 5), scan(6, 7, 0, 2)], "gap between 0 and 2"),
    "own success refused": ([cas(-1, 0, 1), lost(0, 2, 3), cas(0, 4, 5)], "refused while 0 was the newest"),
    "first refused": ([lost(-1, 0, 1), cas(-1, 2, 3)], "refused while -1 was the newest"),
    "old seqno won after truncation": ([cas(-1, 0, None), head(0, 1, 2), cas(-1, 3, 4, b"x")], "after 0 was known"),
}


@pytest.mark.parametrize("operations", SOUND.values(), ids=SOUND)
def test_sound_history_has_no_violations(operations: list[Operation]) -> None:
    assert violations(operations) == []


@pytest.mark.parametrize(("operations", "expected"), WRONG.values(), ids=WRONG)
def test_wrong_history_is_named(operations: list[Operation], expected: str) -> None:
    assert any(expected in text for text in violations(operations))


def test_keys_are_checked_apart() -> None:
    other = cas(-1, 2, 3)
    other.key = "other"
    assert violations([cas(-1, 0, 1), other]) == []
