"""Builds the site without a network, and sees that readers need none: a hook of MkDocs.

While it is built, every attempt to reach another machine fails. When it is built, a page, style or script that loads
something from elsewhere fails the build. Links that a reader may follow are free.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

LOADED = {
    "audio": "src", "embed": "src", "iframe": "src", "img": "src", "link": "href", "object": "data", "script": "src",
    "source": "src", "video": "src",
}  # fmt: skip
ELSEWHERE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
LOADED_BY_STYLE = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)


def on_startup(command: str, **_: Any) -> None:
    """From here on no server is asked for anything. Only for builds: a server for writers has to listen."""
    if command == "build":
        sys.addaudithook(_stay_here)


def _stay_here(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise RuntimeError(f"the site must build without a network: {event} {arguments[-1]!r}")


class _Loads(HTMLParser):
    """What a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "link" and given.get("rel") == "canonical":
            return
        address = given.get(LOADED.get(tag, "")) or ""
        if ELSEWHERE.match(address):
            self.found.append(address)


def loads(text: str, suffix: str) -> list[str]:
    """The addresses of other machines from which a page (``.html``) or a style (``.css``) loads something."""
    found = LOADED_BY_STYLE.findall(text)
    if suffix == ".html":
        page = _Loads()
        page.feed(text)
        found += page.found
    return found


def on_post_build(config: Any, **_: Any) -> None:
    """Look at all that was built. Raises Abort."""
    from mkdocs.exceptions import Abort

    site = Path(config["site_dir"])
    told = [
        f"{path.relative_to(site)} loads {address}"
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".css")
        for address in loads(path.read_text(), path.suffix)
    ]
    if told:
        raise Abort("\n".join(told))
