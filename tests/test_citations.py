"""Every place that the code and the documents cite exists: pages, their sections, and what is numbered in them."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {page.stem: page for page in (ROOT / "docs" / "design").glob("*.md") if page.stem != "README"}
PAGES["architecture"] = ROOT / "docs" / "architecture.md"

NAMES = "|".join(sorted(PAGES, key=len, reverse=True))
# What follows the name of a page, as far as it is a list of places: "sections 2.3 and 5, I4 to I6".
PLACE = r"(?:sections?|findings?|facts?|rules?|bars?|(?:feature )?rows?|and|to|[IABP]\d+[a-z]?|\d+(?:\.\d+)*[a-z]?)"
CITATION = re.compile(rf"(?<![\w/-])({NAMES})\.md((?:[,\s]*\(?{PLACE}\b)*)")
DESIGN = re.compile(r"\bdesign (\d{3})\b")
WORDS = {"fact": "fact", "finding": "finding", "rule": "rule", "row": "row", "feature row": "row"}


@cache
def cited() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.proto", "docs/*.md", "README.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return [ROOT / name for name in listed if "persist/v1/" not in name.replace("protos/", "", 1) or "protos" in name]


@cache
def anchors(page: Path) -> set[str]:
    text = page.read_text()
    found = {"section " + number.rstrip(".") for number in re.findall(r"^#+ (\d[\d.]*)", text, re.M)}
    found |= {"section " + number.rstrip(".") for number in re.findall(r"\*\*(\d[\d.]*\d)[ .*]", text)}
    found |= {"section " + number for number in re.findall(r"^\| (\d+\.\d+) \|", text, re.M)}
    found |= {"section " + number for number in re.findall(r"\*\*(\d+[a-z])\*\*", text)}
    found |= set(re.findall(r"^\| ([IBP]\d+|(?:fact|finding|rule|row) \d+) \|", text, re.M))
    return found | set(re.findall(r"^\* \*\*(A\d+)\.", text, re.M))


def places(text: str) -> list[str]:
    """The anchors that a list of places names."""
    named: list[str] = []
    kind, before = "section", ""
    for word in re.findall(r"feature rows?|[A-Za-z]+(?![A-Za-z\d])|[IABP]?\d+(?:\.\d+)*[a-z]?", text):
        bare = word.removesuffix("s")
        if word in ("and", "to"):
            pass
        elif bare in WORDS or bare in ("section", "bar"):
            kind = WORDS.get(bare, "section")
        elif word[0] in "IABP":
            named += spread(before, word) if before.startswith(word[0]) else [word]
        else:
            named.append(f"{kind} {word}")
        before = (before + " to") if word == "to" else word
    return named


def spread(before: str, last: str) -> list[str]:
    """``I4 to I6`` names I5, too."""
    if not before.endswith(" to"):
        return [last]
    return [f"{last[0]}{number}" for number in range(int(before[1:-3]) + 1, int(last[1:]) + 1)]


@cache
def citations(path: Path) -> list[tuple[str, str]]:
    """(page, place) for each place a file cites; the place is empty where a page is cited whole."""
    text = path.read_text()
    if ".md" not in text and "design " not in text:
        return []
    text = re.sub(r"\n[ #/]*", " ", text)
    found = []
    for name, rest in CITATION.findall(text):
        found += [(name, place) for place in places(rest)] or [(name, "")]
    return found + [("documents", number) for number in DESIGN.findall(text)]


def leads_nowhere(name: str, place: str) -> bool:
    if name == "documents" and place:
        return f"| {place} |" not in PAGES["documents"].read_text()
    return bool(place) and place not in anchors(PAGES[name])


def test_every_citation_leads_somewhere():
    astray = {
        f"{path.relative_to(ROOT)}: {name}.md, {place}"
        for path in cited()
        for name, place in citations(path)
        if leads_nowhere(name, place)
    }
    assert not astray, "\n".join(sorted(astray))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (" sections 2.3, 2.4 and 2.7", ["section 2.3", "section 2.4", "section 2.7"]),
        (" section 2, I4 to I6 and I10", ["section 2", "I4", "I5", "I6", "I10"]),
        (" feature rows 19, 20", ["row 19", "row 20"]),
        (" section 0 fact 7, section 2.3", ["section 0", "fact 7", "section 2.3"]),
        (" bar B2", ["B2"]),
        ("", []),
    ],
)  # fmt: skip
def test_places_are_read(text: str, named: list[str]):
    assert places(text) == named


def test_citations_are_found_at_all():
    assert sum(len(citations(path)) for path in cited()) > 300
