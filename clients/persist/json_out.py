"""Values as JSON that every reader takes: Python itself writes NaN and Infinity, which JSON has not."""

import json
import math
from collections.abc import Callable, Mapping


def json_of(
    value: object, default: Callable[[object], object], *, indent: int | None = None, is_ascii: bool = False
) -> str:
    """JSON of a value; ``default`` gives one for what JSON has no type for.

    A float that JSON has no number for is a text, as PostgreSQL has it: NaN, Infinity, -Infinity.
    """
    try:
        return json.dumps(value, default=default, indent=indent, ensure_ascii=is_ascii, allow_nan=False)
    except ValueError:
        texts = _with_texts(value)
        return json.dumps(texts, default=default, indent=indent, ensure_ascii=is_ascii, allow_nan=False)


def _with_texts(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _with_texts(each) for name, each in value.items()}
    return [_with_texts(each) for each in value] if isinstance(value, list | tuple) else value
