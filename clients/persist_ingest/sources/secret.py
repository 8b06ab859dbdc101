"""Secrets among the options of sources: kept is the place one is in, a file or a variable of the environment.

Source: reliability.md section 5, logs and errors.
"""

import os
from pathlib import Path
from typing import Final

from persist import InvalidArgument
from persist.redaction import learn_secret

_FILE: Final = "file:"
_VARIABLE: Final = "env:"


def check_place(option: str, text: str) -> None:
    """Raise InvalidArgument where a secret is given itself, and not the place it is in."""
    if not text.startswith((_FILE, _VARIABLE)):
        raise InvalidArgument(
            "a secret is not kept with the source",
            hint=f"give {option}=file:PATH or {option}=env:NAME, and have that wherever the source is read",
        )


def looked_up(option: str, text: str, *, is_secret: bool) -> str:
    """What is in that place on this machine; a text that names no place is itself. Raises InvalidArgument.

    A secret is scrubbed from what this process writes from then on.
    """
    value = _found(option, text)
    if is_secret and value != text:
        learn_secret(value)
    return value


def _found(option: str, text: str) -> str:
    if text.startswith(_FILE):
        try:
            return Path(text.removeprefix(_FILE)).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as cause:
            raise InvalidArgument(
                f"option {option} names a file that cannot be read", hint="have it on this machine, too", got=text
            ) from cause
    if text.startswith(_VARIABLE):
        found = os.environ.get(text.removeprefix(_VARIABLE))
        if found is None:
            raise InvalidArgument(
                f"option {option} names a variable that is not set", hint="set it for this process, too", got=text
            )
        return found
    return text
