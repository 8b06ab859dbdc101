"""The options of one operation, checked, as sources and Spark operations take them."""

from collections.abc import Mapping
from dataclasses import dataclass

from persist import InvalidArgument
from persist.digits import whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options of one operation, checked: canonical name to text."""

    use: str
    values: Mapping[str, str]

    def get(self, name: str) -> str | None:
        """The text of an option, None when it was not given."""
        return self.values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean option. Raises InvalidArgument unless it reads true or false."""
        text = self.values.get(name)
        if text is None:
            return default
        if text.strip().lower() not in {"true", "false"}:
            raise InvalidArgument(f"option {name} must be true or false", got=text)
        return text.strip().lower() == "true"

    def whole(self, name: str, *, least: int = 0) -> int | None:
        """A whole-number option, at least ``least``. Raises InvalidArgument otherwise."""
        text = self.values.get(name)
        if text is None:
            return None
        number = whole_number(text.strip())
        if number is None or number < least:
            raise InvalidArgument(f"option {name} must be a whole number, at least {least}", got=text)
        return number

    def exclusive(self, *names: str) -> str | None:
        """The one option of ``names`` that was given, if any. Raises InvalidArgument when several were."""
        given = [name for name in names if name in self.values]
        if len(given) > 1:
            raise InvalidArgument(
                f"options {' and '.join(given)} exclude each other", hint=f"keep {given[0]} or {given[-1]}"
            )
        return given[0] if given else None

    def requires(self, name: str, *others: str) -> None:
        """``name`` means something only beside one of ``others``. Raises InvalidArgument."""
        if name in self.values and not any(other in self.values for other in others):
            raise InvalidArgument(f"option {name} needs {' or '.join(others)}", hint=f"add {others[0]} or drop {name}")
