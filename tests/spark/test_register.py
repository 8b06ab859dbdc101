"""What ``register`` sees to where Spark by itself only says that there is no such data source."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persist import InvalidArgument
from pyspark_persist import register
from pyspark_persist.application import check_python

Where = dict[str, str]


def test_thread_that_registers_the_session_can_write(spark: Any, where: Where, contents: Callable[..., Any]) -> None:
    """A thread of the JVM that is new has no session, and Spark looks for data sources in that one."""
    frame = spark.createDataFrame([(1,)], "id long")
    failed: list[Exception] = []

    def write(*, registered: bool) -> None:
        try:
            if registered:
                register(spark)
            frame.write.format("persist").mode("append").options(**where, keyColumns="id", commitTime=5).save()
        except Exception as error:
            failed.append(error)

    for registered in (False, True):
        thread = threading.Thread(target=write, kwargs={"registered": registered})
        thread.start()
        thread.join()
    assert contents(where) == [(1, 1)]
    # Spark's fault, which a release of it may mend.
    assert len(failed) <= 1
    assert all("DATA_SOURCE_NOT_FOUND" in str(error) for error in failed)


def python_of(folder: Path, *, knows: bool) -> str:
    """A Python that has no packages but, if asked, this one's."""
    program = folder / "python"
    environment = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}" if knows else "PYTHONPATH="
    program.write_text(f'#!/bin/sh\nexec env {environment} {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("knows", [True, False])
def test_python_that_lacks_the_package_is_refused_by_name(tmp_path: Path, knows: bool) -> None:
    python = python_of(tmp_path, knows=knows)
    assert subprocess.run([python, "-c", "import json"], check=False).returncode == 0
    context = SimpleNamespace(pythonExec=python, _python_includes=[])
    if knows:
        check_python(context)
        return
    with pytest.raises(InvalidArgument, match="does not have persist") as refused:
        check_python(context)
    assert refused.value.details["spark"] == python
    check_python(SimpleNamespace(pythonExec=python, _python_includes=["persist.zip"]))
    check_python(SimpleNamespace(pythonExec=str(tmp_path / "elsewhere"), _python_includes=[]))
