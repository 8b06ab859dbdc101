"""Every knob, with its default and unit. Data only: read once, printable, passed to constructors.

Environment variables are ``PERSIST_`` and the field's name in capitals. Source: persist-semantics.md section 3.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from persist.digits import whole_number
from persist.errors import InvalidArgument

MAY_BE_ZERO: Final = frozenset(
    {
        "inline_part_bytes_max",
        "inline_total_bytes_max",
        "shard_cache_bytes",
        "written_cache_bytes",
        "compaction_takeover_ms",
        "reclaim_bytes",
        "reclaim_after_ms",
        "first_connection_ms",
        "uploads_outstanding",
        "compactions_at_once",
        "compaction_round_ms",
        "compaction_memory_bytes",
    }
)
"""Numbers for which 0 means "none", "at once" or the least there can be. With 0 of others nothing goes on, or a
processor is never idle."""
MOST: Final = {"max_message_bytes": (1 << 30) - 1}
"""gRPC's own limit, of which clients take twice as much."""
COMPACTION_MESSAGE_BYTES: Final = 4 << 20
"""What a compaction claims, and what it hands back, passes in messages of this size whatever is set: it is bounded so
that it fits, and what did not pass would be claimed, and merged, again and again."""
PREFIX: Final = "PERSIST_"
OPTIONS: Final = frozenset(
    {
        "ADVERTISE", "BLOB", "CATALOG_IMPLEMENTATION", "CONSENSUS", "DATA", "DEBUG", "ENDPOINT", "GENERATION", "LISTEN",
        "LOCATION", "LOG_LEVEL", "MINTER", "OTLP_ENDPOINT", "ROLE", "SIDE_LISTEN", "SPARK_MASTER", "STASH", "STATE_DIR",
        "TIMEOUT",
    }
)  # fmt: skip
"""Variables that are no settings: options of the command line, and what names a location."""
ALIKE: Final = 0.85
"""How much alike a misspelt name is to the one that is meant: one letter of four, two of nine."""
MOST_OF_ANY: Final = 1 << 53
"""Beyond it durations and sums of sizes are not exact any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Knobs of the library and the services. Sizes in bytes, durations in ms, rows in rows."""

    part_bytes_max: int = 128 << 20
    """Target size of a part blob."""
    row_group_rows: int = 65_536
    """Rows in one Parquet row group."""
    sort_rows: int = 1 << 20
    """Rows sorted at once: one run of a large append."""
    uploads_outstanding: int = 2
    """Parts being uploaded while the next is built."""
    inline_part_bytes_max: int = 4096
    """A batch at most this large travels inside the state. 0: never."""
    inline_total_bytes_max: int = 1 << 20
    """Inline bytes a state may hold before appends must go to Blob."""
    rollup_every: int = 128
    """Seqnos between rollups."""
    shard_cache_bytes: int = 256 << 20
    """What a process keeps in memory of shards it has looked at, as estimated from what their states name. Beyond that
    those it was asked for longest ago are forgotten, and read again when needed. Those at work are kept."""
    compaction: bool = True
    """Compact in this process what its commits leave to compact; off where PersistCompaction does it."""
    compaction_memory_bytes: int = 512 << 20
    """What one compaction may take at its peak, over what the process takes idle; at least 64 MiB, to which less is
    raised. Covered are blocks fetched and being fetched, rows decoded, buffered and sorted, and parts being encoded and
    uploaded, for values up to 1 MiB. Not covered is memory that an allocator keeps after it was freed."""
    compactions_at_once: int = 1
    """Compactions a process runs at a time."""
    written_cache_bytes: int = 32 << 20
    """What a process keeps of the small parts that it has just written, so that compacting them reads nothing back from
    Blob. 0: nothing."""
    compaction_parts_max: int = 1_000
    """Parts that are merged by one compaction, and fewer where their descriptions fill its message: some 110 GB of the
    largest parts. What is killed begins anew; and the event loop is held while that many are replaced in a state."""
    compaction_step_parts_max: int = 64
    """Parts that a step takes on, of which larger compactions consist: at least two for each run. One that is killed
    begins its step anew, and others of its shard wait for it."""
    compaction_takeover_ms: int = 120_000
    """A claim on a compaction this old counts as abandoned."""
    compaction_round_ms: int = 60_000
    """PersistCompaction looks at every shard once in so long, beside those it is notified of; at one where it finds
    nothing again and again, once in up to 64 times as long."""
    reclaim_bytes: int = 64 << 20
    """Bytes that compaction replaced after which a rollup is written at once, so that they can be deleted. At least
    sixteen times the state's own bytes, as a rollup writes those."""
    reclaim_after_ms: int = 60_000
    """After so long it is written for fewer, too, however quiet the shard is: by the process that replaced them, or
    after twice as long by another one that has committed something since."""
    gc_versions_max: int = 3840
    """Seqnos one collection of garbage reaches over."""
    maintenance_timeout_ms: int = 600_000
    """Deadline of one collection of garbage or compaction."""
    recent_diffs_max: int = 3840
    """Diffs one scan page reads when catching up."""
    reader_lease_ms: int = 900_000
    """A leased reader that is silent for so long loses its hold."""
    writer_lease_ms: int = 3_600_000
    """A writer or a session that is silent for so long is forgotten. What is answered afterwards is still true."""
    retry_first_ms: int = 4
    """First pause before a retry; each further one is longer, with jitter."""
    retry_max_ms: int = 1_000
    """Longest pause before a retry: short enough to find a server soon after it is back."""
    poll_first_ms: int = 100
    """First pause between polls where changes are not pushed."""
    poll_max_ms: int = 16_000
    """Longest pause between polls."""
    timeout_ms: int = 30_000
    """Default deadline of a call that names none."""
    first_connection_ms: int = 3_000
    """A client that no server has answered yet gives up where nothing listens for so long. 0: with the call's time."""
    store_timeout_ms: int = 10_000
    """Deadline of one Consensus call."""
    blob_timeout_ms: int = 90_000
    """Deadline of one Blob call."""
    fetch_bytes_max: int = 256 << 20
    """Encoded bytes one reader keeps in flight."""
    decoded_bytes_max: int = 512 << 20
    """Arrow bytes one row group may decode to: a bomb guard."""
    lane_queue_max: int = 1024
    """Commands waiting per shard before RESOURCE_EXHAUSTED."""
    lane_fold_max: int = 256
    """Commands folded into one commit."""
    max_message_bytes: int = 4 << 20
    """Largest gRPC request. What compactions claim and hand back may take 4 MiB in any case."""
    parts_per_append_max: int = 10_000
    """Parts one append may name. Their descriptions fit one message and one value of Consensus besides: over gRPC about
    1,400 parts of 128 MiB in 64 blocks, embedded about 2,500; those of 8 MiB five times as many. More is refused with
    RequestTooLarge before anything is committed."""
    shard_batches_max: int = 20_000
    """Batches of a shard that wait to be merged before appends of rows are refused with RESOURCE_EXHAUSTED and a delay.
    Progress without rows is always taken."""
    shard_parts_max: int = 200_000
    """Parts of a shard, whose descriptions its state holds, before appends of rows are refused likewise."""
    request_memory_bytes: int = 256 << 20
    """Memory that the requests a server works on may take, as estimated from their bytes and elements before they are
    parsed. More is refused with RESOURCE_EXHAUSTED and a delay."""
    answer_memory_bytes: int = 64 << 20
    """Memory that answers on their way to readers may take, twelve times their bytes each; those of one connection a
    quarter of it. Others wait, or are refused with RESOURCE_EXHAUSTED and a delay. Up to 8 KiB nothing is counted."""
    calls_max: int = 4096
    """Calls that end by themselves which a server works on at a time."""
    streams_max: int = 8192
    """Streams of each method that a server serves at a time: sessions, watches, snapshots, fetches, lists, dumps. Not
    among the calls above. One connection may have a quarter of them."""
    stream_stall_ms: int = 60_000
    """A stream whose reader takes nothing of an answer for so long ends; clients go on from there."""
    session_idle_ms: int = 120_000
    """A session ends once nothing is under way on it and no frame came for so long."""
    store_pulse_ms: int = 5_000
    """A server asks each of its stores once in so long whether it answers, for metrics and ``/readyz``."""
    watch_ms_max: int = 600_000
    """A watch, snapshot or fetch waits no longer than this, whatever its deadline; clients go on from there."""
    environment: str = "default"
    """Whose items names are, where there is an environment."""
    catalog_endpoints: str = ""
    """CatalogService servers (HOST:PORT, commas) that an environment asks unless its caller names others. None are
    needed in a directory."""
    allow_unsafe: tuple[str, ...] = ()
    """Findings accepted by name."""

    def __post_init__(self) -> None:
        """Refuse numbers with which nothing would work. Raises InvalidArgument naming the variable and the bound."""
        for field in dataclasses.fields(self):
            if isinstance(field.default, int) and not isinstance(field.default, bool):
                _check_number(field.name, getattr(self, field.name))

    @property
    def connection_message_bytes(self) -> int:
        """The largest message of any kind that a connection takes."""
        return max(self.max_message_bytes, COMPACTION_MESSAGE_BYTES)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, unknown: Callable[[str, str], None] | None = None) -> Self:
        """Settings with every ``PERSIST_<FIELD>`` applied; an empty one is not set. Raises InvalidArgument naming it.

        ``unknown`` is called with each variable that is none but spelt much like one, and that one: see ``misspelt``.
        None: a warning for each.
        """
        for name, meant in misspelt(environ).items():
            (unknown or _warn)(name, meant)
        changes: dict[str, object] = {}
        for field in dataclasses.fields(cls):
            text = environ.get(f"{PREFIX}{field.name.upper()}", "")
            if not text.strip():  # ``${NAME:-}`` of a compose file: not set
                continue
            if field.name == "allow_unsafe":
                changes[field.name] = tuple(name for name in text.split(",") if name)
                continue
            if isinstance(field.default, str):
                changes[field.name] = text
                continue
            if isinstance(field.default, bool):
                changes[field.name] = _truth(f"{PREFIX}{field.name.upper()}", text.strip())
                continue
            number = whole_number(text.strip())
            if number is None:
                raise InvalidArgument(f"{PREFIX}{field.name.upper()} must be a whole number", got=text)
            changes[field.name] = number
        return dataclasses.replace(cls(), **changes)  # type: ignore[arg-type]  # fields are checked just above


def misspelt(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that are set, known to no part of persist and spelt much like one that is, each with that one.

    Others are passed over: other programs, and what starts containers, use the prefix, too.
    """
    known = {*(field.name.upper() for field in dataclasses.fields(Settings)), *OPTIONS}
    found: dict[str, str] = {}
    for name, text in environ.items():
        word = name.removeprefix(PREFIX)
        if word == name or word in known or not text.strip():
            continue
        from difflib import get_close_matches  # nearly always there is nothing to compare

        near = get_close_matches(word, sorted(known), n=1, cutoff=ALIKE)
        if near:
            found[name] = PREFIX + near[0]
    return found


def not_known(name: str, meant: str) -> InvalidArgument:
    """What a variable that is spelt like another one is refused with."""
    return InvalidArgument(f"{name} is no setting", hint=f"did you mean {meant}? otherwise unset it")


def _warn(name: str, meant: str) -> None:
    warnings.warn(f"{name} is no setting and was passed over: did you mean {meant}?", stacklevel=3)


def _check_number(field: str, value: object) -> None:
    name, least, most = f"PERSIST_{field.upper()}", int(field not in MAY_BE_ZERO), MOST.get(field, MOST_OF_ANY)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} must be a whole number", got=repr(value)[:80])
    if value < least:
        raise InvalidArgument(f"{name} must be at least {least}", hint="leave it out for the default", got=value)
    if value > most:
        raise InvalidArgument(f"{name} must be at most {most}", hint="leave it out for the default", got=value)


def _truth(name: str, text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        raise InvalidArgument(f"{name} must be true or false", got=text)
    return known[text.lower()]


PLACES = ("endpoint", "location", "blob", "consensus")
"""What names a location: a server, or a directory, or a pair of stores. A variable each, as above."""


def place_of(given: Mapping[str, str | None], environ: Mapping[str, str]) -> dict[str, str]:
    """What names the one location meant, of ``PLACES``: what was given, or else what the environment has.

    Stores may be given in part, and the rest stand in the environment; an endpoint may have the ``blob`` beside it that
    its parts are read from. Raises InvalidArgument: no location is named, or several, or half of a pair.
    """
    said = {name: value for name in PLACES if (value := given.get(name))}
    known = {name: value for name in PLACES if (value := environ.get(f"PERSIST_{name.upper()}"))} | said
    chosen = said or known
    if said.keys() == {"blob"} and "endpoint" in known and "consensus" not in known:
        chosen = {name: known[name] for name in ("endpoint", "blob")}
    kinds: list[str] = [name for name in ("endpoint", "location") if name in chosen]
    if "consensus" in chosen or ("blob" in chosen and not kinds):
        kinds.append("stores")
    ways = "an endpoint, or a directory (location), or blob with consensus"
    if not kinds:
        raise InvalidArgument("no persist location is named", hint=f"name {ways}")
    if len(kinds) > 1:
        raise InvalidArgument("several persist locations are named", hint=f"name one: {ways}", named=[*chosen])
    if kinds == ["stores"]:
        chosen = {name: known[name] for name in ("blob", "consensus") if name in known}
        if len(chosen) != 2:
            raise InvalidArgument("blob and consensus go together", hint="name both", named=[*chosen])
    return chosen
