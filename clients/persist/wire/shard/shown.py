"""A state as JSON-ready values, for people and tests. Source: persist-semantics.md feature rows 58, 59."""

from persist.core.frontier import Antichain
from persist.core.shard.batch import HollowBatch, Part
from persist.core.shard.state import State
from persist.core.shard.trace import Claim, SpineBatch


def state_to_json(state: State) -> dict[str, object]:
    """Everything in the state; bytes as hexadecimal digits, frontiers as lists."""
    return {
        "shard": str(state.shard),
        "seqno": state.seqno,
        "walltime_ms": state.walltime_ms,
        "hostname": state.hostname,
        "format": state.format,
        "known_format": state.known_format,
        "incarnation": state.incarnation,
        "since": _frontier(state.since),
        "upper": _frontier(state.upper),
        "seqno_since": state.seqno_since,
        "is_tombstone": state.is_tombstone,
        "rows": state.trace.rows,
        "parts": state.trace.parts,
        "inline_bytes": state.inline_bytes,
        "rollups": {
            str(seqno): {"key": rollup.key, "encoded_bytes": rollup.encoded_bytes}
            for seqno, rollup in sorted(state.rollups.items())
        },
        "last_gc_req": state.last_gc_req,
        "active_rollup": _claim(state.active_rollup),
        "active_gc": _claim(state.active_gc),
        **_holders(state),
        "transactions": {
            name: {
                "version": record.version,
                "upper": _frontier(record.upper),
                "seqno": record.seqno,
                "owner": record.owner,
            }
            for name, record in sorted(state.transactions.items())
        },
        "schemas": [{"schema_id": entry.schema_id, "codec": entry.codec} for entry in state.schemas],
        "spine": [_spine_batch(each) for each in state.trace.spine],
    }


def _holders(state: State) -> dict[str, object]:
    return {
        "leased_readers": {
            str(name): {
                "since": _frontier(reader.since),
                "seqno": reader.seqno,
                "heartbeat_ms": reader.heartbeat_ms,
                "lease_ms": reader.lease_ms,
                "purpose": reader.purpose,
                "hostname": reader.hostname,
            }
            for name, reader in sorted(state.leased_readers.items())
        },
        "critical_readers": {
            name: {"since": _frontier(reader.since), "opaque": reader.opaque.hex(), "purpose": reader.purpose}
            for name, reader in sorted(state.critical_readers.items())
        },
        "writers": {
            str(name): {
                "heartbeat_ms": writer.heartbeat_ms,
                "lease_ms": writer.lease_ms,
            }
            for name, writer in sorted(state.writers.items())
        },
        "sessions": {
            str(name): {
                "first": session.first,
                "seqno": session.seqno,
                "heartbeat_ms": session.heartbeat_ms,
                "lease_ms": session.lease_ms,
                "outcomes": len(session.outcomes),
            }
            for name, session in sorted(state.sessions.items())
        },
        "tokens": len(state.tokens),
        "sessions_forgotten": state.sessions_forgotten,
        "tokens_forgotten": state.tokens_forgotten,
        "transactions_forgotten": state.transactions_forgotten,
    }


def _frontier(frontier: Antichain) -> list[int]:
    return list(frontier.elements)


def _claim(claim: Claim | None) -> dict[str, object] | None:
    return {"start_ms": claim.start_ms, "seqno": claim.seqno, "owner": claim.owner} if claim else None


def _spine_batch(each: SpineBatch) -> dict[str, object]:
    return {
        "lo": each.lo,
        "hi": each.hi,
        "level": each.level,
        "rows": each.rows,
        "claim": _claim(each.claim),
        "batches": [_batch(batch) for batch in each.batches],
    }


def _batch(batch: HollowBatch) -> dict[str, object]:
    return {
        "lower": _frontier(batch.desc.lower),
        "upper": _frontier(batch.desc.upper),
        "since": _frontier(batch.desc.since),
        "rows": batch.rows,
        "truncated": batch.truncated,
        "runs": [[_part(part) for part in run.parts] for run in batch.runs],
    }


def _part(part: Part) -> dict[str, object]:
    return {
        "key": part.key,
        "inline": part.inline is not None,
        "encoded_bytes": part.encoded_bytes,
        "rows": part.rows,
        "key_lower": part.key_lower.hex(),
        "key_upper": None if part.key_upper is None else part.key_upper.hex(),
        "min_ts": part.min_ts,
        "max_ts": part.max_ts,
        "ts_rewrite": part.ts_rewrite,
        "diffs_sum": part.diffs_sum,
        "schema_id": part.schema_id,
        "blocks": len(part.blocks),
    }
