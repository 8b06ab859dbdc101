"""Names of items as people write them.

Source: collections: names.
"""

import re
from typing import Final

from persist.core.catalog.ddl.statements import NAME_MAX, QualifiedName
from persist.errors import InvalidArgument

_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_TEXT_MAX: Final = 4 * NAME_MAX


def name_of(text: object) -> QualifiedName:
    """The name that a text is: ``item``, ``schema.item`` or ``database.schema.item``; a part in double quotes may be
    anything. Raises InvalidArgument."""
    parts, at = list[str](), 0
    if isinstance(text, QualifiedName):
        return text
    if isinstance(text, str) and len(text) <= _TEXT_MAX:
        while found := _PART.match(text, at):
            parts.append(found[2] if found[1] is None else found[1].replace('""', '"'))
            at = found.end()
            if at == len(text) or text[at] != ".":
                break
            at += 1
        if at == len(text) and 1 <= len(parts) <= 3 and text[-1:] != ".":
            return QualifiedName(*reversed(parts))
    raise InvalidArgument(
        "not a name of an item",
        hint='such as flights, public.flights or persist.public.flights; "Odd.Name" in double quotes',
        got=repr(text)[:80],
    )
