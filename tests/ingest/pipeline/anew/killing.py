"""In a process that is to die: at a place in the code, once it has been there so often, by SIGKILL."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import persist
from persist_ingest.pipeline.anew import attempt
from persist_ingest.sources.postgres import pieces

HOLDERS: dict[str, Any] = {
    "attempt": attempt,
    "Attempt": attempt.Attempt,
    "WriteHandle": persist.WriteHandle,
    "TablePiece": pieces.TablePiece,
}


LIFE = "a life begins\n"


def killed_at(place: str, number: int, log: Path | str) -> None:
    """``place``: HOLDER.FUNCTION, with .after behind it where that is done first. ``log``: where each piece begins."""
    name, function, *after = place.split(".")
    holder = HOLDERS[name]
    original, count = getattr(holder, function), 0

    def killed(*given: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        done = original(*given, **named) if after or count < number else None
        if count >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(holder, function, killed)
    pieces.__dict__["opened"] = logging(log)


def logging(log: Path | str) -> Any:
    """What opens pieces, for one life more, which notes where each of them begins."""
    opened = pieces.opened
    with Path(log).open("a") as file:
        file.write(LIFE)

    def logged(session: Any, definition: Any, schema: Any, order: Any, begins: Any, rows: int) -> Any:
        with Path(log).open("a") as file:
            file.write(json.dumps(begins) + "\n")
        return opened(session, definition, schema, order, begins, rows)

    return logged


def reads(log: Path) -> Counter[str]:
    """How often each piece was begun, by where it begins: again only the one at which the life before had ended.

    How often that may be is not bounded: a life may be killed at the piece that it began with.
    """
    found, last = Counter[str](), ""
    for life in log.read_text().split(LIFE)[1:]:
        begun = life.splitlines()
        assert len(set(begun)) == len(begun), "a life reads a piece once"
        assert {*begun} & {*found} <= {last}, "the next life goes on where the one before was"
        found.update(begun)
        last = begun[-1] if begun else last
    return found
