"""An environment of its own for Delta and for Iceberg: the newest PySpark each supports, and its jars.

Made once and kept in ``.lakes``. PySpark comes from PyPI, the jars from Maven Central.
"""

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.processes import ROOT

LAKES = ROOT / ".lakes"
POMS = ROOT / "deploy" / "lakes"
_GROUPS = ("io.delta", "io.unitycatalog", "org.apache.iceberg")
_SECONDS = 1800


class NoLake(RuntimeError):
    """An environment cannot be made here; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A lake format. ``pyspark``: the newest that its jars are built for."""

    name: str
    pyspark: str

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(LAKES / self.name / "venv" / "bin" / "python")

    @property
    def jars(self) -> list[str]:
        """Its jars."""
        return sorted(str(jar) for jar in (LAKES / self.name / "jars").glob("*.jar"))

    @property
    def environment(self) -> Mapping[str, str]:
        """What its processes need in theirs: this project's packages are not for them."""
        return {
            "PYTHONPATH": str(ROOT / "tests"),
            "PYSPARK_PYTHON": self.python,
            "PYSPARK_DRIVER_PYTHON": self.python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def prepared(self, say: Callable[[str], None]) -> "Lake":
        """The same, once it is there. Raises NoLake."""
        folder, pom = LAKES / self.name, POMS / self.name / "pom.xml"
        stamp = f"{self.pyspark} {zlib.crc32(pom.read_bytes())} {sys.version_info[:2]} {folder}"
        if (folder / "stamp").is_file() and (folder / "stamp").read_text() == stamp:
            return self
        if shutil.which("mvn") is None:
            raise NoLake(f"there is no Maven to fetch the jars of {self.name} with")
        say(f"{self.name}: an environment with PySpark {self.pyspark} and its jars, once (some minutes)")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _done([sys.executable, "-m", "venv", str(folder / "venv")])
        _done([self.python, "-m", "pip", "install", "-q", f"pyspark=={self.pyspark}"])
        # The others are Spark's own.
        copied = [f"-DoutputDirectory={folder / 'jars'}", f"-DincludeGroupIds={','.join(_GROUPS)}"]
        _done(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *copied])
        (folder / "stamp").write_text(stamp)
        return self


DELTA = Lake(name="delta", pyspark="4.2.0")
ICEBERG = Lake(name="iceberg", pyspark="4.1.4")


def _done(command: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    answer = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    if answer.returncode:
        raise NoLake(f"{' '.join(command[:4])} failed: {(answer.stderr or answer.stdout)[-500:].strip()}")
