"""Runs: rows of distinct keys in order of the keys' hashes, in two files that are mapped into memory, never loaded.

``NAME.hash`` has the hashes, 8 bytes each; ``NAME.rows`` the rows, an Arrow file. A look-up searches the keys of a step
in the hashes, and touches only pages that it finds something in. Source: sources.md section 4, upsert.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property  # noqa: TID251  # of few objects, one thread each
from pathlib import Path
from typing import Any, Final, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist import Determinate
from persist.arrow import ArrowArray, ArrowColumn, Numbers, array_of, frombuffer, py_buffer
from persist.sources import encode_key
from persist_ingest.pipeline.newest.hashes import key_hashes
from persist_ingest.pipeline.newest.mapped import MappedRows
from persist_ingest.pipeline.newest.sums import checksum
from persist_ingest.pipeline.newest.trouble import told

PRESENT: Final = "\0present"
"""A column of runs: false says that the key has no row any more."""
CHUNK_BYTES: Final = 32 << 20
CHUNK_ROWS_MAX: Final = 1 << 18
_HASH_BYTES: Final = 8
_FENCED: Final = 64
"""Hashes between two fences: a few lines of memory, never more than two pages."""
_FENCED_ROWS: Final = 1 << 18
"""What is smaller is searched as it is."""


class RunJson(TypedDict):
    """A run in JSON."""

    name: str
    starts: list[int]
    ends: list[int]
    sums: list[int]
    hashes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run as it is recorded. ``starts``: where each batch begins, and how many rows there are.

    ``ends``: of each batch in the file of rows, by bytes, and of that; ``sums``: CRC32C of what ends there; ``hashes``:
    of their file.
    """

    name: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    sums: tuple[int, ...]
    hashes: int

    @property
    def bytes(self) -> int:
        """How large the file of rows is."""
        return self.ends[-1]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.starts[-1]

    def to_json(self) -> "RunJson":
        """As ``of`` takes it."""
        return RunJson(name=self.name, starts=[*self.starts], ends=[*self.ends], sums=[*self.sums], hashes=self.hashes)

    @staticmethod
    def of(given: "RunJson") -> "RunFile":
        """From JSON."""
        starts, ends, sums = (tuple(given[name]) for name in ("starts", "ends", "sums"))
        return RunFile(name=given["name"], starts=starts, ends=ends, sums=sums, hashes=given["hashes"])


class RunDamaged(Determinate):
    """A file of a run is not what was written. What it has comes from the shard again, at the next try."""

    reason = "RUN_DAMAGED"

    def __init__(self, name: str) -> None:
        super().__init__("a file of newest rows was damaged", hint="its rows are read again from the shard", run=name)

    def __reduce__(self) -> tuple[object, ...]:
        return RunDamaged, (self.details["run"],)


class Run:
    """A run that can be read. Raises OSError, ArrowInvalid, RunDamaged: it is not what was written.

    SUBTLE: of one that another process wrote, all hashes are checked when it is opened, and each batch of rows when it
    is first touched: so what is wrong is found before anything is made of it, and not all is read at a start.
    """

    def __init__(self, directory: Path, file: RunFile, *, is_known: bool = False) -> None:
        """``is_known``: this process wrote it just now."""
        self.file = file
        self._paths = paths(directory, file.name)
        hashes, rows = self._paths
        if hashes.stat().st_size != file.rows * _HASH_BYTES or rows.stat().st_size != file.bytes:
            raise pa.ArrowInvalid("a file of another length")
        self.hashes: Numbers = np.zeros(0, np.uint64)
        if file.rows:
            content = _mapped(hashes)
            if not is_known and checksum(content) != file.hashes:
                raise RunDamaged(file.name)
            self.hashes = frombuffer(content, np.dtype("<u8"), file.rows)
        self._buffer = _mapped(rows)
        self._unseen = np.full(len(file.ends), not is_known)
        self._see(np.array([len(file.ends) - 1]))
        self._reader = pa.ipc.open_file(self._buffer)
        self._starts = np.asarray(file.starts, np.int64)

    def check(self) -> None:
        """Raise RunDamaged where a file was cut short, before anything of it is looked at.

        SUBTLE: what is mapped, and not there any more, ends the process when it is touched. Files that were removed
        stay as long as they are mapped.
        """
        for path, size in zip(self._paths, (self.file.rows * _HASH_BYTES, self.file.bytes), strict=True):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size < size:
                    raise RunDamaged(self.file.name)

    def _see(self, batches: Numbers) -> None:
        """Raise RunDamaged where one of these is not as it was written; the last one is what Arrow has behind them."""
        if not self._unseen.any():
            return
        for number in np.unique(batches[self._unseen[batches]]).tolist():
            begin = self.file.ends[number - 1] if number else 0
            if checksum(self._buffer.slice(begin, self.file.ends[number] - begin)) != self.file.sums[number]:
                raise RunDamaged(self.file.name)
            self._unseen[number] = False

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        return [self._reader.get_batch(number) for number in range(self._reader.num_record_batches)]

    @cached_property
    def _rows(self) -> MappedRows:
        return MappedRows(self._buffer, self._reader.schema, self._batches)

    @cached_property
    def _fences(self) -> Numbers:
        """Every so many hashes one, so that a search touches one page of the file, and not one at each halving."""
        return np.ascontiguousarray(self.hashes[::_FENCED])

    def places(self, hashes: Numbers) -> Numbers:
        """Where each of these, which ascend, stands or would stand: the first place of those that are not less."""
        self.check()
        if self.file.rows < _FENCED_ROWS:
            return np.searchsorted(self.hashes, hashes)
        behind = np.searchsorted(self._fences, hashes)
        # One that is less than its fence is less than all before it, too.
        at = np.maximum(behind * _FENCED - _FENCED + 1, 0)
        last, step = self.file.rows - 1, _FENCED // 2
        while step:
            ahead = at + (step - 1)
            at += step * ((self.hashes[np.minimum(ahead, last)] < hashes) & (ahead <= last))
            step //= 2
        return at

    def found(self, hashes: Numbers, keys: ArrowArray, key_names: Sequence[str]) -> tuple[Numbers, pa.Table]:
        """Which of these keys it has, and their rows. ``hashes``: of the keys, ascending."""
        at = self.places(hashes)
        wanted, answers, tables = np.arange(len(hashes)), [np.zeros(0, np.int64)], [self._empty]
        while True:
            same = self.has(hashes[wanted], at)
            wanted, at = wanted[same], at[same]
            if not len(wanted):
                return np.concatenate(answers), pa.concat_tables(tables)
            rows = self.take(at)
            hit = _equal(keys_of(rows, key_names), keys.take(array_of(wanted)))
            answers.append(wanted[hit])
            tables.append(rows.filter(pa.array(hit)))
            # Another key of the same hash stands behind it.
            wanted, at = wanted[~hit], at[~hit] + 1

    def has(self, hashes: Numbers, at: Numbers) -> Numbers:
        """Whether these are the hashes at these places, which may be behind the last."""
        if not self.file.rows:
            return np.zeros(len(at), np.bool_)
        is_it: Numbers = self.hashes[np.minimum(at, self.file.rows - 1)] == hashes
        return is_it & (at < self.file.rows)

    def take(self, rows: Numbers) -> pa.Table:
        """The rows at these places, which ascend."""
        if not len(rows):
            return self._empty
        self.check()
        self._see(np.searchsorted(self._starts, rows, "right") - 1)
        return self._rows.take(rows)

    def slice(self, begin: int, end: int) -> pa.Table:
        """The rows at places in ``[begin, end)``."""
        self.check()
        first, last = int(np.searchsorted(self._starts, begin, "right")) - 1, int(np.searchsorted(self._starts, end))
        pieces = []
        for number in range(first, min(last, len(self.file.starts) - 1)):
            start, stop = int(self._starts[number]), int(self._starts[number + 1])
            low, high = max(begin, start), min(end, stop)
            if low < high:
                self._see(np.array([number]))
                pieces.append(self._batches[number].slice(low - start, high - low))
        return pa.Table.from_batches(pieces, self._reader.schema)

    @cached_property
    def _empty(self) -> pa.Table:
        return self._reader.schema.empty_table()


def found_in(
    runs: Sequence[Run], hashes: Numbers, keys: ArrowArray, key_names: Sequence[str], schema: pa.Schema
) -> tuple[Numbers, pa.Table]:
    """Of these distinct keys, in order of their hashes, the index of each one's row in the table, or -1.

    ``runs``: newest first, with columns as ``schema`` has them. The first that has a key's hash is taken for the one
    that has the key; where it has another one, which is seldom, the key is looked for itself. Raises LocationError.
    """
    owners, tables, left = [np.zeros(0, np.int64)], [schema.empty_table()], np.arange(len(keys))
    with told():
        for run in runs:
            if not len(left):
                break
            at = run.places(hashes[left])
            hit = run.has(hashes[left], at)
            if hit.any():
                owners.append(left[hit])
                tables.append(run.take(at[hit]))
                left = left[~hit]
        owner, rows = np.concatenate(owners), pa.concat_tables(tables)
        index = _index(len(keys), owner, rows)
        equal = _equal(keys_of(rows, key_names), keys.take(array_of(owner)))
        if not equal.all():
            other = np.sort(owner[~equal])
            others = _found_themselves(runs, hashes[other], keys.take(array_of(other)), key_names, schema)
            index[other] = np.where(others[0] >= 0, others[0] + rows.num_rows, -1)
            rows = pa.concat_tables([rows, others[1]])
    return index, rows


def _found_themselves(
    runs: Sequence[Run], hashes: Numbers, keys: ArrowArray, key_names: Sequence[str], schema: pa.Schema
) -> tuple[Numbers, pa.Table]:
    """As ``found_in``, each key compared in each run."""
    owners, tables, left = [np.zeros(0, np.int64)], [schema.empty_table()], np.arange(len(keys))
    for run in runs:
        at, rows = run.found(hashes[left], keys.take(array_of(left)), key_names)
        owners.append(left[at])
        tables.append(rows)
        left = np.delete(left, at)
    rows = pa.concat_tables(tables)
    return _index(len(keys), np.concatenate(owners), rows), rows


def _index(count: int, owner: Numbers, rows: pa.Table) -> Numbers:
    """The place of each owner's row; a row that was taken back is none."""
    present = flat(rows.column(PRESENT)).to_numpy(zero_copy_only=False).astype(bool)
    index = np.full(count, -1, np.int64)
    index[owner] = np.where(present, np.arange(len(owner)), -1)
    return index


def _equal(some: ArrowArray, others: ArrowArray) -> Numbers:
    equal: Numbers = pc.equal(some, others).to_numpy(zero_copy_only=False)
    return equal.astype(np.bool_)


class RunWriter:
    """Writes one run. Chunks come in order of hashes. A context: after an error nothing of it stays.

    Raises LocationError.
    """

    def __init__(self, directory: Path, name: str, schema: pa.Schema) -> None:
        self._directory = directory
        self._name = name
        self._paths = paths(directory, name)
        self._starts, self._ends, self._sum = [0], list[int](), 0
        self._schema = schema
        self._open = contextlib.ExitStack()
        try:
            with told():
                self._hashes: Any = self._open.enter_context(self._paths[0].open("wb"))
                self._sink = self._open.enter_context(pa.OSFile(str(self._paths[1]), "wb"))
                self._rows = self._open.enter_context(pa.ipc.new_file(self._sink, schema))
        except BaseException:
            self.discard()
            raise

    def write(self, hashes: Numbers, rows: pa.Table) -> None:
        """Rows of distinct keys, with ``PRESENT``, and their hashes, ascending, at or beyond those before."""
        if not len(hashes):
            return
        with told():
            content = py_buffer(np.ascontiguousarray(hashes, np.dtype("<u8")))
            self._hashes.write(content)
            self._sum = checksum(content, self._sum)
            for batch in rows.select(self._schema.names).combine_chunks().to_batches():
                self._rows.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
                self._starts.append(self._starts[-1] + batch.num_rows)
                self._ends.append(self._sink.tell())

    def finish(self) -> Run:
        """The run, which can be read from now on; after an error nothing of it stays."""
        with self, told():
            self._open.close()
            content = _mapped(self._paths[1])
            ends = (*self._ends, content.size)
            sums = tuple(
                checksum(content.slice(begin, end - begin)) for begin, end in zip((0, *ends), ends, strict=False)
            )
            file = RunFile(name=self._name, starts=tuple(self._starts), ends=ends, sums=sums, hashes=self._sum)
            return Run(self._directory, file, is_known=True)

    def discard(self) -> None:
        """Remove what was written."""
        # What is removed need not be written to its end.
        with contextlib.suppress(OSError, pa.ArrowException):
            self._open.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()


def _mapped(path: Path) -> pa.Buffer:
    """A file's bytes, mapped into memory as long as they are used. Its descriptor is closed."""
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def paths(directory: Path, name: str) -> tuple[Path, Path]:
    """The files of a run."""
    return directory / f"{name}.hash", directory / f"{name}.rows"


def keys_of(rows: pa.Table | pa.RecordBatch, key_names: Sequence[str]) -> pa.LargeBinaryArray:
    """The canonical bytes of each row's key."""
    return encode_key([flat(rows.column(name)) for name in key_names])


def in_order(rows: pa.Table, key_names: Sequence[str]) -> tuple[Numbers, pa.Table]:
    """Rows of distinct keys as a run takes them."""
    hashes = key_hashes(keys_of(rows, key_names))
    order = np.argsort(hashes, kind="stable")
    return hashes[order], rows.take(array_of(order))


def merged(
    runs: Sequence[Run], key_names: Sequence[str], *, whole: bool, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[Numbers, pa.Table]]:
    """What runs, newest first, come to, for a writer, in bounded memory. ``whole``: nothing older is below them."""
    for run in runs:
        run.check()
    total = sum(run.file.rows for run in runs)
    size = max(1, sum(run.file.bytes for run in runs) // max(total, 1))
    rows = int(np.clip(chunk_bytes // size, 1024, CHUNK_ROWS_MAX))
    count = max(1, -(-total // rows))
    # Runs may have a range of the keys only.
    low, high = _ends(runs)
    edges = np.array([low + (high - low) * number // count for number in range(1, count)], np.uint64)
    cuts = [[0, *np.searchsorted(run.hashes, edges).tolist(), run.file.rows] for run in runs]
    for number in range(count):
        for run in runs:
            run.check()
        ranges = [(run, cut[number], cut[number + 1]) for run, cut in zip(runs, cuts, strict=True)]
        hashes = np.concatenate([run.hashes[begin:end] for run, begin, end in ranges])
        table = pa.concat_tables([run.slice(begin, end) for run, begin, end in ranges])
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        kept = _newest(hashes, table, order, key_names)
        order, hashes = order[kept], hashes[kept]
        table = table.take(array_of(order))
        if whole:
            present = flat(table.column(PRESENT)).to_numpy(zero_copy_only=False).astype(bool)
            if not present.all():
                table, hashes = table.filter(pa.array(present)), hashes[present]
        yield hashes, table


def _ends(runs: Sequence[Run]) -> tuple[int, int]:
    """The least hash there is, and the greatest."""
    ends = [(int(run.hashes[0]), int(run.hashes[-1])) for run in runs if run.file.rows]
    return min((low for low, _ in ends), default=0), max((high for _, high in ends), default=0)


def _newest(hashes: Numbers, table: pa.Table, order: Numbers, key_names: Sequence[str]) -> Numbers:
    """Which rows in this order, newest first where hashes are equal, are the first of their keys."""
    same = hashes[1:] == hashes[:-1]
    kept = np.ones(len(hashes), bool)
    if same.any():
        tied = np.flatnonzero(np.r_[same, False] | np.r_[False, same])
        keys = keys_of(table.select(list(key_names)).take(array_of(order[tied])), key_names)
        codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        _, first = np.unique(codes, return_index=True)
        kept[tied] = False
        kept[tied[first]] = True
    return kept


def flat(column: ArrowColumn) -> ArrowArray:
    """A column as one array, copied only where it has several chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        # Arrow would copy it.
        return column.chunk(0)  # type: ignore[return-value]  # narrower than Arrow is
    joined: ArrowArray = column.combine_chunks()
    return joined
