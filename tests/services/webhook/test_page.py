"""The page's webhook, as its reader would have it: commands, curl, and what they print."""

import asyncio
import os
import re
import signal
import subprocess
from pathlib import Path

from forked import child_environment
from pages.fences import ROOT, fences
from services.proxy import free_endpoint

PAGE = ROOT / "docs/sources.md"


def test_the_page_sends_a_delivery_with_curl(tmp_path: Path) -> None:
    (fence,) = [each for each in fences(PAGE) if each.elsewhere == "tests/services/webhook/test_page.py"]
    assert fence.output is not None
    code = fence.code
    for port in ("7500", "9500"):
        code = code.replace(f"127.0.0.1:{port}", asyncio.run(free_endpoint()))
    shell = subprocess.Popen(
        ["bash", "-e", "-c", code],
        cwd=tmp_path, env=child_environment(), stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert shell.wait(120) == 0
    finally:
        # The server, which the shell left running.
        os.killpg(shell.pid, signal.SIGTERM)
    assert shell.stdout is not None
    wanted = re.escape(fence.output.strip()).replace("…", ".+")
    assert re.search(wanted, shell.stdout.read()), wanted
