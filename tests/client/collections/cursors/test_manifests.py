"""The manifest of a folder of a sink: what it costs, and that it is whole whatever dies."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persist import InvalidArgument
from persist.sinks import FilesSink
from persist.sinks import manifest as manifests

SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.uint64()), ("diff", pa.int64())])
NONE = SCHEMA.empty_table()
KEY = "persist.public.c over s1"


def updates(id: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": id, "ts": id, "diff": 1}], SCHEMA)


def as_version_1(folder: Path) -> dict[str, Any]:
    """What earlier releases had in a folder."""
    manifest = json.loads((folder / "manifest.json").read_text())
    lines = [json.loads(line) for line in (folder / manifest.pop("log")).read_text().splitlines()]
    for path in folder.glob("manifest-*"):
        path.unlink()
    del manifest["segments"]
    return {**manifest, "version": 1, "position": lines[-1]["position"], "files": lines}


def test_a_write_costs_the_same_however_many_files_there_are(tmp_path: Path):
    sink = FilesSink(tmp_path, "jsonl")
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1), None, 5)
    sink.close()
    manifest = as_version_1(tmp_path)
    many = [
        {"name": f"updates-{at:020d}.jsonl", "before": at - 1, "position": at, "rows": 1} for at in range(5, 20_005)
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "files": many, "position": 20_004}))
    assert sink.begin(KEY, 0, SCHEMA) == 20_004
    there = {path.name: path.stat() for path in tmp_path.iterdir()}
    sink.write(KEY, 0, updates(2), 20_004, 20_005)
    sink.write(KEY, 0, NONE, 20_005, 30_000)
    written = sum(
        path.stat().st_size - (there[path.name].st_size if path.name in there else 0)
        for path in tmp_path.iterdir()
        if path.name not in there or path.stat().st_mtime_ns != there[path.name].st_mtime_ns
    )
    assert written < 1_000
    assert [path.name for path in sink.files()] == [*(each["name"] for each in many), f"updates-{20_005:020d}.jsonl"]
    sink.close()
    again = FilesSink(tmp_path, "jsonl")
    assert again.begin(KEY, 0, SCHEMA) == 30_000
    assert len(again.files()) == 20_001
    again.close()


def test_a_manifest_is_whole_wherever_its_writer_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At each byte of a line, which may also be zeros after a power cut, and between all steps of sealing a log."""
    monkeypatch.setattr(manifests, "LINES_MAX", 4)
    folder, there = tmp_path / "a", dict[int, list[str]]()

    def found(folder: Path, *expected: int) -> None:
        sink = FilesSink(folder, "jsonl")
        names = [path.name for path in sink.files()]
        position = sink.begin(KEY, 0, SCHEMA)
        assert position in expected
        assert names == there[position] == [path.name for path in sink.files()]
        assert all(path.exists() for path in sink.files())
        sink.write(KEY, 0, updates(99), position, 2_000)
        assert [path.name for path in sink.files()] == [*there[position], f"updates-{2_000:020d}.jsonl"]
        sink.close()

    sink = FilesSink(folder, "jsonl")
    assert sink.begin(KEY, 0, SCHEMA) is None
    last = None
    for at in range(1, 12):
        rows = updates(at) if at % 3 else NONE
        before = tmp_path / f"before-{at}"
        shutil.copytree(folder, before)
        sink.write(KEY, 0, rows, last, at)
        last, there[at] = at, [path.name for path in sink.files()]
        if at == 1:
            continue
        log = json.loads((before / "manifest.json").read_text())["log"]
        names = {path.name for path in folder.iterdir()} - {path.name for path in before.iterdir()}
        sealed = json.loads((folder / "manifest.json").read_text())["log"] != log
        for name in names:
            shutil.copy(folder / name, before / name)  # what is not named yet
        found(shutil.copytree(before, tmp_path / f"unnamed-{at}"), at - 1)
        if sealed:
            (before / log).write_bytes((before / log).read_bytes() + b'{"position": %d}\n' % at)
            shutil.copy(folder / "manifest.json", before / "manifest.json")
            found(before, at)
            continue
        line = (folder / log).read_bytes()[(before / log).stat().st_size :]
        for size in {0, 1, len(line) // 2, len(line) - 2, len(line) - 1}:
            for rest in (b"", b"\0" * (len(line) - size - 1) + b"\n"):
                torn = tmp_path / "torn"
                shutil.rmtree(torn, ignore_errors=True)
                shutil.copytree(before, torn)
                (torn / log).write_bytes((before / log).read_bytes() + line[:size] + rest)
                # Of a line that lacks its end alone all was said.
                found(torn, at if line[:size] + rest == line else at - 1)
    sink.close()
    (log,) = folder.glob("manifest-*.log")
    log.write_bytes(b"{}\n" + log.read_bytes() + b'{"position": 50}\n')
    with pytest.raises(InvalidArgument, match="damaged: line 1"):
        sink.begin(KEY, 0, SCHEMA)
    sink.close()
    log.unlink()
    with pytest.raises(InvalidArgument, match="damaged: a file that it names is gone"):
        sink.files()
