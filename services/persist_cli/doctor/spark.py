"""Checks for Spark: Java, PySpark, and the Python its workers use, which need not be this one."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from persist.typed import Record
from persist_cli.doctor.checks import BAD, OK, WARN, Check

JAVA_MIN: Final = 17
PROBE_SECONDS: Final = 60

# Run by the Python that Spark's workers would use. Spark hides every data source when one pyspark_* package is broken.
_PROBE: Final = """
import importlib, json, pkgutil, platform, sys
seen = {"python": platform.python_version(), "executable": sys.executable, "prefix": sys.prefix, "broken": {}}
for name in ("pyspark", "pyarrow", "pandas", "persist"):
    try:
        seen[name] = getattr(importlib.import_module(name), "__version__", "importable")
    except Exception as error:
        seen["broken"][name] = repr(error)
for module in pkgutil.iter_modules():
    if module.name.startswith("pyspark_"):
        try:
            seen.setdefault("sources", {})[module.name] = hasattr(importlib.import_module(module.name), "DefaultSource")
        except Exception as error:
            seen["broken"][module.name] = repr(error)
print(json.dumps(seen))
"""


_INSTALL: Final = f"{sys.executable} -m pip install 'persist-tvc[spark]'"


def spark(environ: Mapping[str, str]) -> Iterator[Check]:
    """Everything a Spark job with ``format("persist")`` needs on this machine."""
    yield _java(environ)
    yield _pyspark()
    yield _pandas()
    yield from _workers(environ)


def _java(environ: Mapping[str, str]) -> Check:
    home = environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH"))
    step = (
        f"run `make setup`, install Java {JAVA_MIN} (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    )
    if java is None or not Path(java).is_file():
        return Check("java", BAD, f"none at {java}" if java else "none on PATH, and JAVA_HOME is not set", step)
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("java", BAD, f"{java}: {error}", step)
    found = re.search(r'version "(\d+)[^"]*"', answer.stderr)
    if found is None or int(found.group(1)) < JAVA_MIN:
        return Check("java", BAD, f"{found.group(0) if found else 'no version'} at {java}", step)
    return Check("java", OK, f"{found.group(0)} at {java}")


def _pyspark() -> Check:
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return Check("pyspark", BAD, "missing", "pip install 'persist-tvc[spark]'")
    if _major_minor(found) < (4, 2):
        return Check("pyspark", BAD, f"{found}, older than 4.2", "pip install 'persist-tvc[spark]'")
    return Check("pyspark", OK, found)


def _pandas() -> Check:
    try:
        found = version("pandas")
    except PackageNotFoundError:
        return Check("pandas", BAD, "missing", "pip install 'persist-tvc[spark]'")
    if _major_minor(found) >= (3, 0):
        return Check("pandas", BAD, f"{found}: PySpark needs one below 3", "pip install 'pandas<3'")
    return Check("pandas", OK, found)


def _major_minor(text: str) -> tuple[int, int]:
    major, minor = (int(re.sub(r"\D.*", "", piece) or 0) for piece in (*text.split("."), "0")[:2])
    return major, minor


def _workers(environ: Mapping[str, str]) -> Iterator[Check]:
    named = environ.get("PYSPARK_PYTHON")
    command = named or "python3"
    told = _probe(command, environ)
    if isinstance(told, str):
        yield Check("worker python", BAD, f"{command}: {told}", f"export PYSPARK_PYTHON={sys.executable}")
        return
    # By what is installed for it: one environment has its Python under several names.
    is_mine = told["prefix"] == sys.prefix
    if named is None and told["broken"]:
        found = f"PYSPARK_PYTHON is not set, and {told['executable']} lacks {', '.join(told['broken'])}"
        yield Check("worker python", BAD, found, _INSTALL if is_mine else f"export PYSPARK_PYTHON={sys.executable}")
        return
    mine = ".".join(map(str, sys.version_info[:2]))
    if not told["python"].startswith(f"{mine}."):
        step = f"driver and workers must agree: export PYSPARK_PYTHON={sys.executable}"
        yield Check("worker python", BAD, f"{told['python']}, not {mine}, at {told['executable']}", step)
    elif named is None and not is_mine:
        step = f"to use this Python in workers: export PYSPARK_PYTHON={sys.executable}"
        yield Check("worker python", WARN, f"PYSPARK_PYTHON is not set: {told['executable']}", step)
    else:
        yield Check("worker python", OK, f"{told['python']} at {told['executable']}")
    for name, why in told["broken"].items():
        step = (
            "install it for the workers' Python" if name.count("_") == 0 else "mend or remove it: it hides all sources"
        )
        yield Check(f"worker {name}", BAD, why, step)
    if told.get("sources", {}).get("pyspark_persist"):
        yield Check("data source", OK, 'workers find format("persist") by themselves')
    elif "pyspark_persist" not in told["broken"]:
        step = "install persist for the workers' Python, or call pyspark_persist.register(spark)"
        yield Check("data source", BAD, "pyspark_persist is not installed for the workers' Python", step)


def _probe(command: str, environ: Mapping[str, str]) -> Record | str:
    """What the workers' Python says about itself; a text when it does not run."""
    try:
        done = subprocess.run(
            [command, "-c", _PROBE],
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_SECONDS,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found
