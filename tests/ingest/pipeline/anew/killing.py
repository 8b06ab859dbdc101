"""In a process that is to die: at a place in the code, once it has been there so often, by SIGKILL."""

import json
import os
import signal
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


def killed_at(place: str, number: int, log: Path | str) -> None:
    """``place``: HOLDER.FUNCTION, with .after behind it where that is done first. ``log``: where each piece begins."""
    name, function, *after = place.split(".")
    holder = HOLDERS[name]
    original, opened, count = getattr(holder, function), pieces.opened, 0

    def killed(*given: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        done = original(*given, **named) if after or count < number else None
        if count >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def logged(session: Any, definition: Any, schema: Any, order: Any, begins: Any, rows: Any) -> Any:
        with Path(log).open("a") as file:
            file.write(json.dumps(begins) + "\n")
        return opened(session, definition, schema, order, begins, rows)

    setattr(holder, function, killed)
    pieces.__dict__["opened"] = logged
