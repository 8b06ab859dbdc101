"""The wheel as a user gets it: built, unpacked away from the checkout, and used from there."""

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "persist", "persist_catalog", "persist_cli", "persist_compaction", "persist_host", "persist_ingest",
    "persist_minter", "persist_shard", "persist_webhook", "pyspark_persist"
)  # fmt: skip


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what ``pip install persist-tvc`` would add to site-packages, without what it depends on.

    Programs are run from there, and leave what they compiled for those that follow.
    """
    return unpacked(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def shipped(wheel: Path, tmp_path: Path) -> Path:
    """The same, with nothing but what is in the wheel."""
    return unpacked(wheel, tmp_path)


def unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run away from the checkout; the packages of the wheel come first on the path."""
    environ = {**os.environ, "PYTHONPATH": str(installed), "PERSIST_LOCATION": str(installed.parent / "data")}
    return subprocess.run(
        command, cwd=installed.parent, env=environ, capture_output=True, text=True, timeout=200, check=False
    )


def test_every_package_comes_from_the_wheel(installed: Path) -> None:
    code = "; ".join(f"import {name}; print({name}.__file__)" for name in PACKAGES)
    done = run(installed, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert [Path(line).parent for line in done.stdout.split()] == [installed / name for name in PACKAGES]


def test_types_and_generated_stubs_are_shipped(shipped: Path) -> None:
    assert [name for name in PACKAGES if not (shipped / name / "py.typed").is_file()] == []
    for proto in (ROOT / "protos" / "persist" / "v1").glob("*.proto"):
        for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi"):
            assert (shipped / "persist" / "v1" / f"{proto.stem}{suffix}").is_file()


def test_clients_can_be_generated_from_the_protos_in_the_wheel(shipped: Path, tmp_path: Path) -> None:
    protos = sorted(path.relative_to(shipped) for path in (shipped / "persist" / "v1").glob("*.proto"))
    assert [path.name for path in protos] == sorted(path.name for path in (ROOT / "protos/persist/v1").glob("*.proto"))
    command = ["-m", "grpc_tools.protoc", "-I", ".", "--descriptor_set_out", str(tmp_path / "all"), *map(str, protos)]
    done = subprocess.run(
        [sys.executable, *command], cwd=shipped, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"PersistShard" in (tmp_path / "all").read_bytes()


def test_nothing_else_is_shipped(shipped: Path) -> None:
    (metadata,) = shipped.glob("*.dist-info")
    assert {path.name for path in shipped.iterdir()} == {*PACKAGES, metadata.name}
    assert (metadata / "licenses" / "LICENSE").is_file()
    assert not (shipped / "persist" / "testing").exists()
    assert {path.suffix for path in shipped.rglob("*.*") if path.is_file() and metadata not in path.parents} == {
        ".proto",
        ".py",
        ".pyi",
        ".typed",
    }


def command_of(installed: Path) -> list[str]:
    """What the installed script ``persist`` does, according to the wheel."""
    (metadata,) = installed.glob("*.dist-info")
    (entry,) = importlib.metadata.Distribution.at(metadata).entry_points.select(name="persist")
    return [sys.executable, "-c", f"import sys; from {entry.module} import {entry.attr} as run; sys.exit(run())"]


def test_command_and_doctor_run(installed: Path) -> None:
    shown = run(installed, *command_of(installed), "--help")
    assert shown.returncode == 0, shown.stderr
    assert "doctor" in shown.stdout
    doctor = run(installed, *command_of(installed), "doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr


def test_server_starts_and_drains(installed: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "persist_shard",
        "127.0.0.1:0",
        f"file:{installed.parent}/b",
        f"sqlite:{installed.parent}/c",
    ]
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    with subprocess.Popen(command, cwd=installed.parent, env=environ, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert "listening on" in server.stdout.readline()
        server.terminate()
        assert server.wait(60) == 0


def test_spark_finds_the_source_by_itself(installed: Path) -> None:
    # What Spark's workers do at the first query: every pyspark_* module that has a DefaultSource.
    code = (
        "import pkgutil, pyspark_persist\n"
        "names = [m.name for m in pkgutil.iter_modules() if m.name.startswith('pyspark_')]\n"
        "assert 'pyspark_persist' in names, names\n"
        "print(pyspark_persist.DefaultSource.name())"
    )
    done = run(installed, sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (0, "persist\n"), done.stderr
