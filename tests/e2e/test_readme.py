"""The README's example is what a newcomer tries first: it is run as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from forked import run_fork
from pages.running import commands, plain

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 12


def examples() -> list[str]:
    text = (ROOT / "README.md").read_text()
    return [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "persist.embedded(" in code]


def test_readme_has_one_short_example():
    lines = [line for line in examples()[0].splitlines() if line.strip()]
    assert 3 <= len(lines) <= LINES_MAX


def test_readme_example_runs_as_it_stands(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", examples()[0]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip(), "the example shows what it read"


def test_readme_statements_run_as_they_stand(tmp_path):
    text = (ROOT / "README.md").read_text()
    [script] = [code for code in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "persist sql" in code]
    said = ""
    for command in commands(script):
        words = plain(command)
        assert words is not None, f"{command} needs a shell"
        done = run_fork("persist_cli", *words[1:], directory=tmp_path)
        assert done.returncode == 0, done.stderr
        said += done.stdout
    assert "140" in said
    assert "ada" in said
