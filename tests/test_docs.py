"""The pages are true: tables equal the code, links lead somewhere, every finding has its remedy."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_tables_repeat_what_the_code_knows() -> None:
    done = subprocess.run(
        [sys.executable, "deploy/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)#\s]*(?:#[\w-]+)?)\)", page.read_text()):
        path, _, heading = target.partition("#")
        if "://" in path:
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (heading and heading not in anchors(file)):
            broken.append(target)
    assert not broken, broken


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def finding_names() -> set[str]:
    """Names of all findings the storage adapters can report."""
    names: set[str] = set()
    for path in (ROOT / "clients/persist/storage").rglob("*.py"):
        text = path.read_text()
        names |= set(re.findall(r'name="([a-z0-9]+-[a-z-]+)"', text))
        for prefix, table in (("redis", "_RULES"), ("postgres", "_RULES"), ("s3", "_CONSEQUENCES")):
            if f'name=f"{prefix}-' in text and (block := re.search(rf"^{table}.*?^}}", text, re.DOTALL | re.MULTILINE)):
                names |= {
                    f"{prefix}-{name.replace('_', '-')}"
                    for name in re.findall(r'^    "([\w-]+)":', block.group(), re.M)
                }
    return names


def test_every_finding_has_its_remedy_in_the_runbook() -> None:
    names = finding_names()
    runbook = (ROOT / "docs/runbook.md").read_text()
    assert len(names) >= 20
    assert not {name for name in names if f"`{name}`" not in runbook}


def test_every_spark_option_is_documented() -> None:
    names = pytest.importorskip("pyspark_persist.options.names")
    page = (ROOT / "docs/spark.md").read_text()
    spellings = {spelling for option in names.OPTIONS for spelling in (option.name, *option.aliases)}
    assert not {spelling for spelling in spellings if f"`{spelling}`" not in page}


def test_the_map_says_where_things_happen() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)` \| ([^|]+) \|$", page, re.MULTILINE)
    assert len(rows) >= 15
    missing = []
    for path, names in rows:
        file = next((each for root in ("", "clients/persist/") if (each := ROOT / root / path).exists()), None)
        text = file.read_text() if file else ""
        told = re.findall(r"`(\w+)`", names)
        missing += [
            f"{path}: {name}" for name in told if not re.search(rf"^ *(async )?def {name}\b", text, re.MULTILINE)
        ]
    assert not missing


def test_the_map_names_folders_and_files_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    roots: tuple[str, ...] = (
        "",
        "clients/",
        "clients/persist/",
        "clients/persist_ingest/",
        "services/",
        "spark/",
        "docs/",
        "tests/",
    )
    roots += ("services/persist_cli/", "protos/persist/v1/")
    named = set(re.findall(r"`([\w/-]+/[\w./-]*|[\w/-]+\.(?:py|md|proto))`", page))
    # A name without a folder is in the one that was named before.
    there = {path.name for top in ("clients", "services", "spark", "protos") for path in (ROOT / top).rglob("*.*")}
    wrong = {each for each in named if not any((ROOT / root / each).exists() for root in roots)}
    assert not {each for each in wrong if "/" in each.rstrip("/") or each not in there}


def test_the_map_has_every_room() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = {part for word in re.findall(r"`([\w/.-]+)`", page) for part in word.strip("/").split("/")}
    tops = ["clients", "clients/persist", "clients/persist/client", "clients/persist/core", "clients/persist/machine"]
    tops += ["clients/persist/client/collections", "clients/persist/client/sql", "clients/persist/storage"]
    tops += ["clients/persist_ingest", "services", "spark", "spark/pyspark_persist", "tests"]
    rooms = [room for top in tops for room in (ROOT / top).iterdir() if room.is_dir() and any(room.rglob("*.py"))]
    assert not {str(room.relative_to(ROOT)) for room in rooms if room.name not in named}
