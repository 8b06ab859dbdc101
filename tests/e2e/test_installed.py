"""What a user installs: the wheel in an environment of its own, with what it asks for and nothing of the checkout."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from persist.testing import servers

ROOT = Path(__file__).resolve().parents[2]
PACKAGES_MAX = 8


@dataclass(frozen=True)
class Environment:
    """A virtual environment. Commands run in ``folder``."""

    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PERSIST_", "PYTHON"))}
        program = str(self.folder / "venv" / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.folder,
            env=clean,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def python(self, code: str) -> str:
        done = self.run("python", "-c", textwrap.dedent(code))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def persist(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = self.run("persist", *words)
        assert done.returncode == 0, done.stderr
        return done

    def packages(self) -> set[str]:
        return set(
            json.loads(
                self.python(
                    "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
                )
            )
        )


def install(wheel: Path, folder: Path, *extras: str) -> Environment:
    """The environment there, new if need be, with the wheel and these extras in versions of constraints.txt."""
    if not (folder / "venv").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], timeout=60, check=True)
    python = str(folder / "venv" / "bin" / "python")
    wanted = ["-c", str(ROOT / "constraints.txt"), f"{wheel}[{','.join(extras)}]" if extras else str(wheel)]
    if uv := shutil.which("uv"):
        command = [uv, "pip", "install", "-q", "--python", python, *wanted]
    elif importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        command = [*pip, "install", "-q", "--no-compile", *wanted]
    else:
        subprocess.run([python, "-m", "ensurepip"], capture_output=True, timeout=120, check=True)
        command = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile", *wanted]
    # What this process finds elsewhere is not there for the new one.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return Environment(folder)


def readme_example() -> str:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]


NEEDS = {
    "grpc": [
        "persist.connect('127.0.0.1:1')",
        "client.minter('127.0.0.1:1')",
        "client.oracle(endpoints='127.0.0.1:1')",
        "client.catalog('e', endpoints='127.0.0.1:1')",
    ],
    "s3": ["persist.embedded(blob='s3://bucket/p', consensus='sqlite:x.db')"],
    "fast": ["persist.embedded(blob='s3://bucket/p?client=obstore', consensus='sqlite:x.db')"],
    "redis": ["persist.embedded(blob='file:b', consensus='redis://127.0.0.1:1/0')"],
    "postgres": ["persist.embedded(blob='file:b', consensus='postgres://u@127.0.0.1:1/d')"],
    "server": [f"__import__('persist_{name}')" for name in ("host", "shard", "compaction", "minter", "catalog")],
    "spark": ["__import__('pyspark_persist')"],
    "kafka": ["persist_ingest.create(here, 'k', 'kafka', {})"],
    "postgres-source": ["persist_ingest.create(here, 'p', 'postgres', {})"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the environment is that one test after the other adds to, as users do."""
    return tmp_path_factory.mktemp("environment")


def test_plain_installation_keeps_shards_in_files_and_names_the_extra_of_everything_else(
    wheel: Path, folder: Path
) -> None:
    environment = install(wheel, folder)
    packages = environment.packages() - {"pip", "setuptools"}
    assert {"persist-tvc", "pyarrow", "numpy", "protobuf", "google-crc32c"} <= packages
    assert len(packages) <= PACKAGES_MAX, packages

    shown = environment.python(readme_example())
    assert "'Ada Lovelace'" in shown

    told = environment.python(
        f"""
        import json, persist, persist_ingest
        client = persist.embedded("other")
        here = persist_ingest.Location(directory="other")
        found = []
        for extra, calls in {NEEDS!r}.items():
            for call in calls:
                try:
                    eval(call)
                    found.append([extra, call, "nothing was raised"])
                except persist.MissingExtra as error:
                    if error.details["extra"] != extra or f"pip install 'persist-tvc[{{extra}}]'" not in str(error):
                        found.append([extra, call, str(error)])
                    assert isinstance(error, (persist.UsageError, ImportError))
        print(json.dumps(found))
        """
    )
    assert json.loads(told) == []

    for words in (["--help"], ["shard", "list", "--location", "data"]):
        command = environment.run("persist", *words)
        assert command.returncode == 2
        assert re.fullmatch(r"persist: .*pip install 'persist-tvc\[cli\]'\)\n", command.stderr), command.stderr


def test_postgres_source_runs_without_spark(wheel: Path, folder: Path) -> None:
    environment = install(wheel, folder, "cli", "postgres-source")
    assert not {"pyspark", "pandas", "grpcio", "boto3", "redis"} & environment.packages()
    logical = {"wal_level": "logical", "max_wal_senders": "4", "max_replication_slots": "4"}
    with servers.start_postgres(logical) as server, psycopg.connect(server.uri, autocommit=True) as upstream:
        upstream.execute("CREATE TABLE public.orders (id int PRIMARY KEY, item text)")
        upstream.execute("INSERT INTO public.orders VALUES (1, 'tea'), (2, 'milk')")
        dsn = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
        options = ["-o", f"dsn={dsn}", "-o", "tables=public.orders", "-o", "setReplicaIdentity=true"]
        environment.persist("source", "create", "shop", "--type", "postgres", *options, "--location", "data")
        ran = environment.persist("source", "run", "shop", "--steps", "2", "--location", "data")
        assert "everything runs in this process" in ran.stderr
        assert "pip install 'persist-tvc[spark]'" in ran.stderr
        upstream.execute("UPDATE public.orders SET item = 'oat milk' WHERE id = 2")
        environment.persist("source", "run", "shop", "--steps", "2", "--no-spark", "--location", "data")
    here = ("shop.public.orders", "--json", "--location", "data")
    (upper,) = json.loads(environment.persist("shard", "inspect", *here).stdout)["upper"]
    snapshot = environment.persist("shard", "snapshot", *here, "--as-of", str(upper - 1))
    rows = [json.loads(line) for line in snapshot.stdout.splitlines()]
    assert sorted((row["id"], row["item"], row["diff"]) for row in rows) == [(1, "tea", 1), (2, "oat milk", 1)]

    doctor = environment.persist("doctor", "--location", "data", "--json")
    (extras,) = [check["found"] for check in json.loads(doctor.stdout) if check["check"] == "extras"]
    assert extras.startswith("cli, postgres, postgres-source; not installed: ")
