"""The failures of a full run once more, alone in one process: ``again.py RESULTS``, as ``--junitxml`` wrote them.

Exits with 0 if they may be forgiven: at most three tests, all of a kind with real processes, and all pass alone. They
are printed all the same, with what they failed with. Everything else, and whatever fails twice, is 1.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from kinds import REAL_PROCESSES, kind_of  # noqa: E402

FORGIVEN_MAX = 3
LIMIT_SECONDS = 1500


def failures(results: Path) -> tuple[list[tuple[str, str]], int]:
    """The failed tests and what they said, and how many tests there were."""
    cases = list(ElementTree.parse(results).iter("testcase"))
    found = [
        (f"{case.get('classname')}::{case.get('name')}", f"{end.get('message')}\n{end.text}")
        for case in cases
        for end in (*case.findall("failure"), *case.findall("error"))
    ]
    return found, len(cases)


def once_more(folder: Path) -> tuple[bool, list[str], int]:
    """Whether all is well now, the tests that failed again, and how many tests ran."""
    results = folder / "again.xml"
    arguments = f"ARGS=-n 0 --last-failed --last-failed-no-failures=none --junitxml={results}"
    done = subprocess.run(
        ["make", "--no-print-directory", "test", arguments], cwd=ROOT, timeout=LIMIT_SECONDS, check=False
    )
    again, count = failures(results)
    return done.returncode == 0, [name for name, _ in again], count


def main() -> int:
    """Run them, say what came of it, and return the exit code."""
    first, _ = failures(Path(sys.argv[1]))
    names = list(dict.fromkeys(name for name, _ in first))
    strict = [name for name in names if kind_of(name.replace(".", "/")) not in REAL_PROCESSES]
    # A test whose process died again and again has failed each time.
    if not first or strict or len(first) > FORGIVEN_MAX:
        print(f"== no second run: {len(first)} failures, {len(strict)} tests without real processes", flush=True)
        return 1
    print(f"== once more, alone: {', '.join(names)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        well, again, count = once_more(Path(folder))
    for name, said in first:
        print(f"\n{'!' * 120}\nFAILED {'TWICE' if name in again else 'BESIDE OTHERS'}: {name}\n{said}")
    print("!" * 120, flush=True)
    if well and not again and count == len(names):
        print(f"FAILED BESIDE OTHERS AND PASSED ALONE: {', '.join(names)}", flush=True)
        return 0
    print(f"FAILED TWICE: {', '.join(again) or 'not all of them ran'}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
