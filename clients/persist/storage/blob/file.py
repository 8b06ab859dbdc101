"""Blob in a folder of a local disk.

A value is written to a temporary file beside its place, fsynced, renamed into place, and the folder fsynced: a reader
sees all or nothing, and what was acknowledged survives a power cut. Keys cannot leave the root: only the two key forms
are taken, and folders are entered one by one without following links. Source: reliability.md section 5, path traversal.
"""

import errno
import os
import re
import stat
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote

from persist.core.ids import check_blob_key
from persist.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    InvalidUri,
    LocationReplaced,
    PersistError,
    StoreFull,
    StoreReadOnly,
)
from persist.runtime import Runtime
from persist.storage.call_deadline import offloaded
from persist.storage.checks import check_range, check_timeout
from persist.storage.engine.filesystem import FILE_MODE, FOLDER_MODE, VOLATILE, File, file_at, filesystem_of
from persist.storage.ports import Finding

_TEMPORARY: Final = ".tmp-"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_WRITE_BYTES: Final = 16 << 20
_SYNCED_MAX: Final = 10_000

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def classify(error: OSError, what: str, *, visible: bool = False) -> PersistError:
    """What a failure of the file system means. ``visible``: the change may be seen already, durable or not."""
    name = errno.errorcode.get(error.errno or 0, "unknown")
    if visible:
        return Indeterminate(f"blob {what}: the folder was not synced", hint="repeat it", code=name)
    if error.errno in _NO_ROOM:
        return StoreFull(f"blob {what}: no room left", hint="free disk space, then retry", code=name)
    if error.errno in _REFUSED:
        return StoreReadOnly(f"blob {what}: the folder refuses it", hint="check its permissions", code=name)
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
        return CorruptData(f"blob {what}: something else stands at the key", hint="look into the store", code=name)
    return Determinate(f"blob {what}: failed", hint="look at the disk; retry", code=name)


class FileBlob:
    """Implements the Blob port under the folder ``root``, made if missing.

    Another folder in its place is refused (LocationReplaced). ``reopens``: ``reopened`` is the store of that one.
    """

    def __init__(self, root: str, runtime: Runtime, *, reopens: bool = False) -> None:
        if not root or "\0" in root:
            raise InvalidUri("a file URI names a folder", hint="file:PATH", got=repr(root))
        self._root = os.path.abspath(root)
        self._runtime = runtime
        self._closed = False
        # Folders whose own entry this process has synced. Only a hint to save fsyncs.
        self._synced: set[tuple[str, ...]] = set()
        self._opened: File | None = None
        self._kept: weakref.finalize[[int], FileBlob] | None = None
        self._keeping = threading.Lock()
        self._reopens = reopens

    @property
    def uri(self) -> str:
        """``file:PATH``, absolute."""
        return f"file:{quote(self._root, safe='/:@+,=~')}"

    def reopened(self) -> "FileBlob | None":
        """The store of the folder that has this one's path now: itself, if that is what it has open. Blocks.

        None: nothing has it, or this was not opened to be reopened.
        """
        found = file_at(self._root)
        if found is None or self._opened in (None, found):
            return None if found is None else self
        if not self._reopens:
            return None
        other = FileBlob(self._root, self._runtime, reopens=True)
        with other._folder((), make=False):
            return other

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """The value or a slice of it."""
        self._check(key)
        check_range(byte_range)
        return await offloaded(self._runtime, "blob get", timeout, self._get, key, byte_range)

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """On disk when it returns."""
        self._check(key)
        await offloaded(self._runtime, "blob set", timeout, self._set, key, value, mutation=True)

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """The size of the deleted value. Folders stay."""
        self._check(key)
        return await offloaded(self._runtime, "blob delete", timeout, self._delete, key, mutation=True)

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """One after the other, in one thread."""
        for key in keys:
            self._check(key)
        await offloaded(self._runtime, "blob delete", timeout, self._delete_each, tuple(keys), mutation=True)

    async def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """Folder by folder. A prefix that no key can have finds nothing."""
        check_timeout(timeout)
        start = tuple(prefix.split("/")[:-1])
        if not all(_NAME.fullmatch(name) for name in start):
            return
        folders = [start]
        while folders:
            folder = folders.pop()
            names, files = await offloaded(self._runtime, "blob list", timeout, self._entries, folder)
            folders += [(*folder, name) for name in names if _overlaps("/".join((*folder, name)) + "/", prefix)]
            for name, size in files:
                key = "/".join((*folder, name))
                if key.startswith(prefix):
                    yield key, size

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """Succeeds when the value is there; a file system keeps nothing deleted."""
        if await self.get(key, byte_range=(0, 0), timeout=timeout) is None:
            raise Determinate("cannot restore: this store keeps nothing deleted", key=key)

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """Removes the temporary files that crashed writers left behind."""
        start = tuple(prefix.split("/")[:-1])
        if not all(_NAME.fullmatch(name) for name in start):
            return 0
        before = self._runtime.now_ms() - older_than_ms
        return await offloaded(
            self._runtime, "blob abort_uploads", timeout, self._abort, prefix, before, dry_run, mutation=True
        )

    async def findings(self) -> Sequence[Finding]:
        """Whether the folder survives a power cut."""
        kind = filesystem_of(self._root)
        if kind not in VOLATILE:
            return ()
        return (
            Finding(
                name="file-filesystem", setting="file system of the blob folder", found=str(kind),
                required="a disk", consequence="everything is lost at a power cut",
            ),
        )  # fmt: skip

    async def close(self) -> None:
        """Refuse further calls, release the folder."""
        self._closed = True
        if self._kept is not None:
            self._kept()

    def _check(self, key: str) -> None:
        check_blob_key(key)
        if self._closed:
            raise Determinate("the store is closed", hint="open it again")

    def _get(self, key: str, byte_range: tuple[int, int] | None) -> bytes | None:
        *folders, name = key.split("/")
        try:
            with self._folder(folders, make=False) as folder:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise classify(error, "get") from error
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise CorruptData("blob get: something else stands at the key", hint="look into the store", key=key)
            start, end = byte_range or (0, status.st_size)
            return _read(file, start, min(end, status.st_size))
        except OSError as error:
            raise classify(error, "get") from error
        finally:
            os.close(file)

    def _set(self, key: str, value: bytes | memoryview) -> None:
        *folders, name = key.split("/")
        temporary = _TEMPORARY + self._runtime.random_bytes(8).hex()
        visible = False
        try:
            with self._folder(folders, make=True) as folder:
                try:
                    self._write(folder, temporary, value)
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                    visible = True
                except BaseException:
                    with suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
                os.fsync(folder)
        except OSError as error:
            raise classify(error, "set", visible=visible) from error

    def _write(self, folder: int, name: str, value: bytes | memoryview) -> None:
        file = os.open(name, _NEW, FILE_MODE, dir_fd=folder)
        try:
            rest = memoryview(value).cast("B")
            while len(rest):
                rest = rest[os.write(file, rest[:_WRITE_BYTES]) :]
            os.fsync(file)
        finally:
            os.close(file)

    def _delete(self, key: str) -> int | None:
        *folders, name = key.split("/")
        visible = False
        try:
            with self._folder(folders, make=False) as folder:
                size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
                os.unlink(name, dir_fd=folder)
                visible = True
                os.fsync(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise classify(error, "delete", visible=visible) from error
        return size

    def _delete_each(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._delete(key)

    def _entries(self, folders: Sequence[str]) -> tuple[Sequence[str], Sequence[tuple[str, int]]]:
        """The sub-folders and the (name, size) of the values in a folder."""
        names: list[str] = []
        files: list[tuple[str, int]] = []
        try:
            with self._folder(folders, make=False) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    if not _NAME.fullmatch(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        names.append(entry.name)
                    elif _is_key("/".join((*folders, entry.name))) and entry.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):
                            files.append((entry.name, entry.stat(follow_symlinks=False).st_size))
        except FileNotFoundError:
            return [], []
        except OSError as error:
            raise classify(error, "list") from error
        return names, files

    def _abort(self, prefix: str, before_ms: int, dry_run: bool) -> int:
        gone = 0
        try:
            with self._folder((), make=False):
                pass
            for path, folders, files, folder in os.fwalk(self._root, follow_symlinks=False):
                at = "" if path == self._root else os.path.relpath(path, self._root) + "/"
                folders[:] = [name for name in folders if _overlaps(f"{at}{name}/", prefix)]
                if at.startswith(prefix):
                    gone += sum(_abandoned(name, folder, before_ms, dry_run=dry_run) for name in files)
        except FileNotFoundError:
            return gone
        except OSError as error:
            raise classify(error, "abort_uploads") from error
        return gone

    @contextmanager
    def _folder(self, names: Sequence[str], *, make: bool) -> Iterator[int]:
        """A descriptor of ``root/names...``; with ``make``, made and synced as needed."""
        # Before it is looked for: another thread may make and open it right after it was not found.
        known = self._opened is not None
        if make and not known:
            self._make_root()
        # The root itself may be a link: it is the operator's choice, not a key's.
        try:
            folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            if not known:
                raise
            raise self._replaced() from error
        try:
            self._check_root(folder)
            for depth, name in enumerate(names, 1):
                inner = self._enter(folder, name, tuple(names[:depth]), make=make)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _check_root(self, folder: int) -> None:
        """Raise LocationReplaced when another folder has the root's path than when this store first saw it."""
        status = os.fstat(folder)
        found = status.st_dev, status.st_ino
        if self._opened is None:
            self._keep(folder, found)
        if found != self._opened:
            raise self._replaced()

    def _keep(self, folder: int, found: File) -> None:
        """Take this folder for the root. SUBTLE: and hold it open, or the next one made there may get its inode."""
        with self._keeping:
            if self._opened is None:
                self._kept = weakref.finalize(self, os.close, os.dup(folder))
                self._opened = found

    def _replaced(self) -> LocationReplaced:
        return LocationReplaced(
            "the folder of the blobs was deleted or replaced while it was in use: nothing was read or written",
            hint="see what stands at the location now, then open another client",
            path=self._root,
        )

    def _enter(self, folder: int, name: str, path: tuple[str, ...], *, make: bool) -> int:
        if make and path not in self._synced:
            with suppress(FileExistsError):
                os.mkdir(name, FOLDER_MODE, dir_fd=folder)
            # Also when another process made it: that one may not have come to its fsync.
            os.fsync(folder)
            if len(self._synced) >= _SYNCED_MAX:
                self._synced.clear()
            self._synced.add(path)
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                raise
            self._synced.discard(path)
            return self._enter(folder, name, path, make=True)

    def _make_root(self) -> None:
        if () in self._synced and os.path.isdir(self._root):
            return
        missing = []
        path = self._root
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(path, FOLDER_MODE)
            _sync_folder(os.path.dirname(path))
        self._synced.add(())


def _read(file: int, start: int, end: int) -> bytes:
    """Bytes ``[start, end)`` of an open file, in one piece of memory."""
    pieces: list[bytes] = []
    while start < end:
        pieces.append(os.pread(file, end - start, start))
        if not pieces[-1]:
            raise CorruptData("blob get: the file became shorter while it was read", hint="look into the store")
        start += len(pieces[-1])
    # Nearly always one read gives all: nothing is copied.
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _abandoned(name: str, folder: int, before_ms: int, *, dry_run: bool) -> bool:
    """Whether a file is a temporary one of before then. Removed, unless ``dry_run``."""
    if not name.startswith(_TEMPORARY):
        return False
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if status.st_mtime_ns // 1_000_000 < before_ms:
            if not dry_run:
                os.unlink(name, dir_fd=folder)
            return True
    return False


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_key(text: str) -> bool:
    try:
        check_blob_key(text)
    except PersistError:
        return False
    return True


def _overlaps(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)
