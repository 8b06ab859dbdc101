"""The fenced blocks of a page: what each is, and what the page says about running it.

Above a block may stand, as a comment of the page that readers do not see:

``<!-- runs in tests/….py -->``    another test runs it, and names the page or the included file
``<!-- not run: why -->``          it cannot be run, or need not

All other blocks of Python, shell and SQL run, in the order of their page. A ``text`` block right after one is what it
prints; ``…`` in it stands for anything.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "```" in path.read_text())
FOLLOWED = ("README.md", "docs/collections.md", "docs/python.md")
"""Pages whose examples run from top to bottom."""
FOLLOWED_WITH_SPARK = ("docs/spark.md", "docs/tutorial.md")
CODE = ("python", "sh", "sql")

_FENCE = re.compile(
    r"(?:^<!-- (?P<says>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_INCLUDE = re.compile(r'^--8<-- "([\w.]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """One block. ``line``: where it begins; ``output``: what it prints, if the page says so."""

    page: Path
    line: int
    language: str
    code: str
    says: str
    output: str | None = None

    @property
    def elsewhere(self) -> str:
        """The test that runs it, if that is another one."""
        return self.says.removeprefix("runs in ") if self.says.startswith("runs in ") else ""

    @property
    def runs(self) -> bool:
        """Whether it runs with its page."""
        return self.language in CODE and not self.elsewhere and not self.says.startswith("not run: ")

    @property
    def included(self) -> str | None:
        """The example that stands here, by the name of its file."""
        found = _INCLUDE.fullmatch(self.code.strip())
        return found.group(1) if found else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences(page: Path) -> list[Fence]:
    """All blocks of a page, each with its output."""
    text = page.read_text()
    found: list[Fence] = []
    end = 0
    for each in _FENCE.finditer(text):
        line = text.count("\n", 0, each.start("language")) + 1
        fence = Fence(page, line, each["language"], each["code"], each["says"] or "")
        adjacent = found and found[-1].language in CODE and not text[end : each.start()].strip()
        if fence.language == "text" and adjacent and found[-1].output is None:
            before = found.pop()
            fence = Fence(before.page, before.line, before.language, before.code, before.says, fence.code)
        found.append(fence)
        end = each.end()
    return found


def matches(said: str, expected: str) -> bool:
    """Whether it was printed what the page says, ``…`` being anything. Blanks at the ends of lines do not count."""

    def tidy(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = ".*".join(map(re.escape, tidy(expected).split("…")))
    return re.fullmatch(pattern, tidy(said), re.DOTALL) is not None
