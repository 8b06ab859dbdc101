"""All services in one process beside the job: ``persist dev`` on SQLite and files, on a free port."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from persist import LocationError
from pyspark_persist.session import export_python

START_SECONDS: Final = 60
STOP_SECONDS: Final = 20


@contextlib.contextmanager
def all_services(data: Path) -> Iterator[str]:
    """The shard service's endpoint, while the services run over ``data``. Raises LocationError unless they start."""
    export_python()
    command = [sys.executable, "-m", "persist_cli", "dev", "--data", str(data), "--listen", "127.0.0.1:0", "--json"]
    log = data.parent / "services.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=os.environ)
    try:
        yield _endpoint(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _endpoint(process: "subprocess.Popen[str]", log: Path) -> str:
    """The endpoint from the one line of JSON the services print when they are ready."""
    assert process.stdout is not None
    # A timer ends a start that hangs; the read below then sees the end of the output.
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                ready = json.loads(line)
                if isinstance(ready, dict) and "shard" in ready:
                    return str(ready["shard"])
    finally:
        timer.cancel()
    tail = log.read_text(errors="replace")[-2000:]
    raise LocationError("the services did not start", hint=f"see {log}", exit_code=process.wait(), log=tail)
