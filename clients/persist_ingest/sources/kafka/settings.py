"""How to reach Kafka: settings of librdkafka, of which secrets are kept as the place they are in.

Source: sources.md section 3, traps and settings; librdkafka, CONFIGURATION.md; reliability.md section 5.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from persist import InvalidArgument
from persist.typed import Record
from persist_ingest.sources.secret import check_place, looked_up

Settings: TypeAlias = tuple[tuple[str, str], ...]

PREFIX: Final = "kafka."
USUAL: Final = ("security.", "sasl.", "ssl.")
"""Settings that are options under their own names, too."""
_SECRET: Final = (
    "password",
    "passphrase",
    "secret",
    "private",
    "key.pem",
    "sasl.oauthbearer.config",
    "sasl.jaas.config",
)


def divided(raw: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options as settings of librdkafka, without their prefix, and the rest.

    Settings are ``kafka.<name>``, and those of security also by their own name. Raises InvalidArgument for one that is
    given twice.
    """
    settings: dict[str, str] = {}
    rest: dict[str, str] = {}
    for option, text in raw.items():
        name = option.lower()
        if not name.startswith((PREFIX, *USUAL)):
            rest[option] = text
            continue
        name = name.removeprefix(PREFIX)
        if name in settings:
            raise InvalidArgument(f"option {name} is given twice", hint="keep one of them", got=option)
        settings[name] = text
    return settings, rest


def is_secret(name: str) -> bool:
    """Whether what a setting of this name holds must not be shown, nor kept with a source."""
    return any(word in name for word in _SECRET)


def check_kept(name: str, text: str) -> None:
    """Raise InvalidArgument where a secret is given itself, and not the place it is in."""
    if is_secret(name):
        check_place(name, text)


def resolved(settings: Settings) -> Record:
    """The settings with what files and variables hold in their places. Raises InvalidArgument where one is missing."""
    return {name: looked_up(name, text, is_secret=is_secret(name)) for name, text in settings}
