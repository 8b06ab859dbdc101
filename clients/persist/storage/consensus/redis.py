"""Consensus in one Redis: durable only with ``appendonly yes``, ``appendfsync always`` and no fail-over.

Per key: ``{key}:h`` the newest seqno (kept for ever), ``{key}:l`` the log (hash seqno -> bytes), ``{key}:t`` the oldest
seqno left. Every mutation is one Lua script, so it happens as a whole or not at all; a commit publishes its seqno.
The client library never repeats a command. Source: reliability.md section 4, Redis.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import redis.asyncio as aioredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from persist.errors import CorruptData, Determinate, InvalidUri, LocationError, StoreFull, StoreReadOnly
from persist.runtime import Runtime
from persist.storage.call_deadline import StoreCall, deadline
from persist.storage.checks import check_expected, check_key, check_limit, check_seqno, check_truncation, check_value
from persist.storage.engine.pool import Pool
from persist.storage.engine.watchers import Watchers
from persist.storage.ports import Entry, Finding
from persist.typed import AnyValue, Record

_PAGE: Final = 256
_HEAD_KEY: Final = re.compile(r"\{(.+)\}:h")

# Seqnos are compared as strings: Lua numbers are doubles.
_CAS: Final = """
if (redis.call('GET', KEYS[1]) or '-1') ~= ARGV[1] then return 0 end
if ARGV[5] ~= '' and string.sub(redis.call('HGET', KEYS[2], ARGV[1]) or '', 1, #ARGV[5]) ~= ARGV[5] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[2])
return 1
"""

_HEAD: Final = """
local head = redis.call('GET', KEYS[1])
if not head then return {} end
return {head, redis.call('HGET', KEYS[2], head)}
"""

_SCAN: Final = """
local head = tonumber(redis.call('GET', KEYS[1]) or '-1')
local low = math.max(tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[3]) or '0'))
local high = math.min(head, low + tonumber(ARGV[2]) - 1)
local found = {}
for seqno = low, high do
  local name = string.format('%.0f', seqno)
  found[#found + 1] = name
  found[#found + 1] = redis.call('HGET', KEYS[2], name)
end
return found
"""

_TRUNCATE: Final = """
if ARGV[2] ~= '' and string.sub(redis.call('HGET', KEYS[2], ARGV[1]) or '', 1, #ARGV[2]) ~= ARGV[2] then
  return {0, ''}
end
local head = redis.call('GET', KEYS[1])
if not head then return {-1, ''} end
local below = tonumber(ARGV[1])
if below > tonumber(head) then return {-2, head} end
local low = tonumber(redis.call('GET', KEYS[3]) or '0')
if below <= low then return {0, head} end
redis.call('SET', KEYS[3], ARGV[1])
local gone = 0
for seqno = low, below - 1 do
  gone = gone + redis.call('HDEL', KEYS[2], string.format('%.0f', seqno))
end
return {gone, head}
"""

_REFUSED: Final = re.compile(
    r"(?:^|[\s-])(OOM|READONLY|NOREPLICAS|MISCONF|LOADING|MOVED|ASK|NOSCRIPT|BUSY|CLUSTERDOWN|NOAUTH|WRONGPASS|NOPERM)\b"
)
_REFUSED_CLASSES: Final[Mapping[type[Exception], str]] = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.AuthenticationError: "NOAUTH",
    exceptions.NoPermissionError: "NOPERM",
}


def refusal(error: Exception) -> str | None:
    """The code of an error reply that says for certain that nothing happened; None for any other failure."""
    for kind, code in _REFUSED_CLASSES.items():
        if isinstance(error, kind):
            return code
    if not isinstance(error, exceptions.ResponseError):
        return None
    # A refusal inside a script comes wrapped in "ERR Error running script ...: -OOM ..."; our scripts write only after
    # their first write was admitted, so a refusal means that none was.
    match = _REFUSED.search(str(error))
    return match.group(1) if match else None


def classify(error: Exception, call: StoreCall) -> LocationError:
    """What a failure of Redis means. Only the listed refusals are Determinate for a mutation that was sent."""
    code = refusal(error)
    if code == "OOM":
        return StoreFull(f"{call.what}: redis is out of memory", hint="raise maxmemory, then retry", code=code)
    if code in ("READONLY", "MISCONF", "NOREPLICAS"):
        return StoreReadOnly(f"{call.what}: redis refuses writes", hint="look at its log", code=code, detail=error)
    if code is not None:
        return Determinate(f"{call.what}: redis refused", hint="nothing happened; retry", code=code, detail=error)
    return call.failed("redis failed", error)


class RedisConsensus:
    """Implements the Consensus port over ``redis://[user:password@]host:port/db`` (``rediss``: TLS)."""

    def __init__(self, uri: str, runtime: Runtime, *, connections: int = 8) -> None:
        if "#" in uri:
            # A fragment is not used: it is the rest of a password, which would be cut short and shown.
            raise InvalidUri("a redis URI has no fragment", hint="in passwords # is %23; redis://host:port/db")
        self.uri_with_secrets = uri
        self._runtime = runtime
        try:
            options: Record = dict(parse_url(uri))
        except ValueError:
            # Without its cause, which quotes pieces of the URI.
            raise InvalidUri("malformed redis URI", hint="redis://host:port/db") from None
        self._kind: type[AbstractConnection] = options.pop("connection_class", aioredis.Connection)
        self._options = options
        self._channel = f"persist:{options.get('db', 0)}:"
        self._pool = Pool(self._connect, _discard, _healthy, connections)
        self._watchers = Watchers(self._listen, self._added)
        self._subscriber: AbstractConnection | None = None

    @property
    def uri(self) -> str:
        """Without the password."""
        return redacted(self.uri_with_secrets)

    def __repr__(self) -> str:
        return f"RedisConsensus({self.uri!r})"

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """The newest entry."""
        reply = await self._read("redis head", timeout, _HEAD, key)
        if not reply:
            return None
        if len(reply) < 2 or reply[1] is None:
            raise CorruptData("the newest entry of a key is missing", hint="stop and restore the store", key=key)
        return Entry(seqno=int(reply[0]), data=reply[1])

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """On disk when it returns True, given ``appendfsync always``."""
        check_expected(expected)
        check_value(data)
        arguments = (str(expected), str(expected + 1), data, self._channel + check_key(key), after)
        async with self._calling("redis cas", timeout, mutation=True) as command:
            done = bool(await command("EVAL", _CAS, 2, *_names(key)[:2], *arguments))
        if done:
            self._watchers.notify(key, expected + 1)
        return done

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Up to ``limit`` entries, read in pages so that Redis is never busy for long.

        Entries truncated between two pages end the result early only at its front: what follows is still ascending.
        """
        check_seqno(from_seqno)
        check_limit(limit)
        found: list[Entry] = []
        async with self._calling("redis scan", timeout) as command:
            while len(found) < limit:
                ask = min(_PAGE, limit - len(found))
                reply = await command("EVAL", _SCAN, 3, *_names(check_key(key)), str(from_seqno), str(ask))
                if len(reply) % 2 or None in reply:
                    raise CorruptData("a log entry is missing", hint="stop and restore the store", key=key)
                page = [Entry(seqno=int(reply[i]), data=reply[i + 1]) for i in range(0, len(reply), 2)]
                if found and page and page[0].seqno != found[-1].seqno + 1:
                    found.clear()
                found += page
                if len(page) < ask:
                    break
                from_seqno = page[-1].seqno + 1
        return found

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """Entries go, the head stays."""
        check_seqno(below)
        async with self._calling("redis truncate", timeout, mutation=True) as command:
            gone, head = await command("EVAL", _TRUNCATE, 3, *_names(check_key(key)), str(below), after)
        if gone < 0:
            check_truncation(key, below, None if gone == -1 else int(head))
        return int(gone)

    async def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """All keys ever set; each once, which takes memory for their names."""
        seen: set[str] = set()
        cursor = b"0"
        while True:
            async with self._calling("redis list", timeout) as command:
                cursor, names = await command("SCAN", cursor, "MATCH", "{*}:h", "COUNT", 1000)
            for name in names:
                match = _HEAD_KEY.fullmatch(name.decode(errors="replace"))
                if match and match.group(1) not in seen:
                    seen.add(match.group(1))
                    yield match.group(1)
            if int(cursor) == 0:
                return

    def changes(self, key: str) -> AsyncIterator[int]:
        """Hints by SUBSCRIBE; the head first, and again after every reconnect."""
        return self._watchers.changes(check_key(key))

    async def findings(self) -> Sequence[Finding]:
        """What CONFIG GET and INFO say about durability and fail-over."""
        async with deadline("redis findings", 30.0) as call:
            # Not from the pool: that refuses a replica, which is one of the findings.
            connection = await self._open()
            command = _Command(connection, call)
            try:
                info = _info(await command("INFO"))
                return [*await _durability(command, info), *_topology(info)]
            except (exceptions.RedisError, OSError) as error:
                raise classify(error, call) from error
            finally:
                _discard(connection)
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Close every connection, end ``changes``."""
        await self._watchers.close()
        self._pool.close()

    async def _read(self, what: str, timeout: float, script: str, key: str) -> list[AnyValue]:
        async with self._calling(what, timeout) as command:
            reply: list[Any] = await command("EVAL", script, 2, *_names(check_key(key))[:2])
        return reply

    @asynccontextmanager
    async def _calling(self, what: str, timeout: float, *, mutation: bool = False) -> AsyncIterator["_Command"]:
        """A connection for some commands; failures leave as PersistError."""
        async with deadline(what, timeout, mutation=mutation) as call:
            try:
                async with self._pool.lease() as connection:
                    yield _Command(connection, call)
            except (exceptions.RedisError, OSError) as error:
                raise classify(error, call) from error

    async def _open(self) -> AbstractConnection:
        connection = self._kind(
            **{
                **self._options,
                "retry": Retry(NoBackoff(), 0),
                "retry_on_timeout": False,
                "socket_timeout": None,
                "socket_connect_timeout": None,
                "health_check_interval": 0,
                "protocol": 2,
                "decode_responses": False,
                "driver_info": None,
            }
        )
        try:
            await connection.connect()
        except (exceptions.RedisError, OSError) as error:
            _discard(connection)
            raise Determinate("cannot connect to redis", hint="is it running?", uri=self.uri, detail=error) from error
        except BaseException:
            _discard(connection)
            raise
        return connection

    async def _connect(self) -> AbstractConnection:
        connection = await self._open()
        try:
            # A replica answers reads from the past: never talk to one.
            await connection.send_command("ROLE", check_health=False)
            role = (await connection.read_response())[0]
        except (exceptions.RedisError, OSError) as error:
            _discard(connection)
            raise Determinate("redis does not show its role", hint="see detail", uri=self.uri, detail=error) from error
        except BaseException:
            _discard(connection)
            raise
        if role != b"master":
            _discard(connection)
            raise StoreReadOnly("this redis is not a primary", hint="connect to the primary", uri=self.uri, role=role)
        return connection

    async def _added(self, key: str) -> None:
        """Subscribe; the confirmation brings the first hint. While disconnected, the next connection does it."""
        subscriber = self._subscriber
        if subscriber is not None:
            try:
                await subscriber.send_command("SUBSCRIBE", self._channel + key)
            except (exceptions.RedisError, OSError):
                self._subscriber = None

    async def _listen(self) -> None:
        pause = 0.01
        while True:
            connection: AbstractConnection | None = None
            try:
                connection = await self._connect()
                pause = 0.01
                self._subscriber = connection
                for key in self._watchers.keys:
                    await connection.send_command("SUBSCRIBE", self._channel + key)
                while True:
                    await self._message(await connection.read_response())
            except (LocationError, exceptions.RedisError, OSError):
                await self._runtime.sleep(pause)
                pause = min(pause * 2, 1.0)
            finally:
                self._subscriber = None
                if connection is not None:
                    _discard(connection)

    async def _message(self, message: Sequence[AnyValue]) -> None:
        key = message[1].decode().removeprefix(self._channel)
        if message[0] == b"message":
            self._watchers.notify(key, int(message[2]))
        elif message[0] == b"subscribe":
            head = await self.head(key, timeout=5.0)
            if head is not None:
                self._watchers.notify(key, head.seqno)


class _Command:
    """Sends one command and waits for its reply."""

    def __init__(self, connection: AbstractConnection, call: StoreCall) -> None:
        self._connection = connection
        self._call = call

    async def __call__(self, *words: Any) -> Any:
        packed = self._connection.pack_command(*words)
        self._call.sent = True
        await self._connection.send_packed_command(packed, check_health=False)
        return await self._connection.read_response()


def redacted(uri: str) -> str:
    """The URI without passwords."""
    parts = urlsplit(uri)
    user, at, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0]
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "password"], quote_via=quote)
    return urlunsplit(parts._replace(netloc=f"{user}{at}{host}" if user else host, query=query, fragment=""))


def _names(key: str) -> tuple[str, str, str]:
    return f"{{{key}}}:h", f"{{{key}}}:l", f"{{{key}}}:t"


def _discard(connection: AbstractConnection) -> None:
    # There is no public way to close at once and without waiting.
    connection._close()


async def _healthy(connection: AbstractConnection) -> bool:
    """Connected, and nothing to read: no end of file, no late reply."""
    return connection.is_connected and not await connection.can_read()


def _info(reply: bytes) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _pair(reply: Sequence[bytes]) -> str:
    return reply[1].decode() if len(reply) == 2 else "unknown"


_RULES: Final[Mapping[str, tuple[str, str]]] = {
    "config-denied": ("readable", "it is unknown whether acknowledged data is kept; managed services often lose it"),
    "appendonly": ("yes", "a crash or restart loses everything since the last snapshot"),
    "appendfsync": ("always", "a power cut loses the acknowledged commits of the last second"),
    "no-appendfsync-on-rewrite": ("no", "during a rewrite of the log a power cut loses acknowledged commits"),
    "maxmemory-policy": ("noeviction", "under memory pressure redis deletes the log and its heads"),
    "aof-last-write-status": ("ok", "redis failed to write its log to disk"),
    "replica": ("master", "a replica shows the past and loses acknowledged commits at fail-over"),
    "cluster": ("standalone", "a fail-over loses acknowledged commits and rewinds history"),
    "sentinel": ("standalone", "this is a sentinel, not a store"),
    "replicated": ("0", "a fail-over to a replica loses acknowledged commits and rewinds history"),
}


def _finding(name: str, setting: str, found: str) -> Finding:
    required, consequence = _RULES[name]
    return Finding(name=f"redis-{name}", setting=setting, found=found, required=required, consequence=consequence)


async def _durability(command: "_Command", info: Mapping[str, str]) -> list[Finding]:
    names = ("appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite")
    try:
        config = {name: _pair(await command("CONFIG", "GET", name)) for name in names}
    except exceptions.ResponseError as error:
        return [_finding("config-denied", "CONFIG GET", str(error))]
    found = [_finding(name, name, value) for name, value in config.items() if value != _RULES[name][0]]
    status = info.get("aof_last_write_status", "ok")
    return found + ([_finding("aof-last-write-status", "aof_last_write_status", status)] if status != "ok" else [])


def _topology(info: Mapping[str, str]) -> list[Finding]:
    found: list[Finding] = []
    mode, role = info.get("redis_mode", "unknown"), info.get("role", "unknown")
    replicas = info.get("connected_slaves", "0")
    if mode != "standalone":
        found.append(_finding("sentinel" if mode == "sentinel" else "cluster", "redis_mode", mode))
    if role != "master":
        found.append(_finding("replica", "role", role))
    if replicas != "0":
        found.append(_finding("replicated", "connected_slaves", replicas))
    return found
