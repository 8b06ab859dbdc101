"""Why what an export holds becomes no longer: for who waits for a time that does not come by itself.

Source: catalog-semantics.md section 4.2.
"""

from persist import Client, NotYetAvailable, ShardId
from persist.dates import dated
from persist_ingest.pipeline.records import Records
from persist_ingest.pipeline.troubles import STALLED, troubles


def stall_of(the_client: Client, shard: ShardId | str) -> NotYetAvailable | None:
    """What a read of this shard beyond its upper is to be refused with; None: it is of no export that is stalled.

    One RPC and a read of what is recorded of all sources. Raises LocationError.
    """
    for source in Records(the_client).sources().values():
        for export, trouble in troubles(source).items():
            if source.exports[export] != str(shard) or trouble.state != STALLED:
                continue
            return NotYetAvailable(
                f"{export} of source {source.name} is stalled since {dated(trouble.since_ms)}, and has no later times "
                f"until it is mended: {trouble.error}",
                hint=f"{trouble.hint}; then: persist source resnapshot {source.name} {export}",
                upper=the_client.recent_upper(str(shard)),
            )
    return None
