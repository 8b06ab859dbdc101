"""Whole numbers that came as text: from the environment, options, addresses, SQL, another program's answer."""

from typing import Final

DIGITS_MAX: Final = 20
"""Those of the largest number of 64 bits."""


def whole_number(text: str) -> int | None:
    """The number that some text is, or None: of 1 to 20 ASCII digits and nothing else, not even a sign or a space.

    SUBTLE: other tests of digits take a superscript two, which ``int`` refuses; ``str.isdecimal`` takes digits of every
    script; and beyond 4,300 of them ``int`` raises whatever was looked at before.
    """
    return int(text) if len(text) <= DIGITS_MAX and text.isascii() and text.isdecimal() else None
