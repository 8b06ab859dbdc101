"""Which release this is, as states and catalogs show it to people."""

from typing import Final

RELEASE: Final = "0.1.0"
