"""What authors of source readers and pipelines need of source times and bindings, in one place.

Source: design 003; catalog-semantics.md section 4; sources.md.
"""

from persist.client.binding.port import Bound, RemapSource, ResumptionOf, Resumptions
from persist.client.blocking.minter import Minter
from persist.core.binding.binding_log import Append, BindingLog, Covered, MintRules
from persist.core.binding.lives import precedes, succeeding
from persist.core.binding.probe import Probe, check_available
from persist.core.binding.reclock import Reclocker, reclock_frontier, source_upper_at_frontier
from persist.core.binding.remap import Binding, RemapTrace
from persist.core.binding.remap_rows import REMAP_SCHEMA
from persist.core.binding.resumption import ExportUpper, offset_resumption, offsets_of, remap_since, resumption
from persist.core.binding.succession import incarnation_of, succession
from persist.core.data.encoding import encode_key
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import OFFSET_MAX, Lsn, Partition, Point, Range, SourceKind, SourceTime
from persist.core.source.source_timeline import check_claim, claims_epoch, source_timeline
from persist.core.source.standing import FAILED, RECORDS, SILENT_MS, STALLED, STATUS, status_shard
from persist.core.time.clock import check_clock
from persist.core.time.errors import (
    ClockAhead,
    JumpTooLarge,
    SourceQuarantined,
    UpstreamLost,
    UpstreamRegressed,
    UpstreamReplaced,
)
from persist.core.time.timeline import (
    EPOCH_MILLISECONDS,
    CounterTimeline,
    EpochMilliseconds,
    ExternalTimeline,
    Timeline,
    UserTimeline,
    timeline_of,
)
from persist.storage.blob.etags import s3_etags

__all__ = [
    "EPOCH_MILLISECONDS",
    "FAILED",
    "OFFSET_MAX",
    "RECORDS",
    "REMAP_SCHEMA",
    "SILENT_MS",
    "STALLED",
    "STATUS",
    "Append",
    "Binding",
    "BindingLog",
    "Bound",
    "ClockAhead",
    "CounterTimeline",
    "Covered",
    "EpochMilliseconds",
    "ExportUpper",
    "ExternalTimeline",
    "JumpTooLarge",
    "Lsn",
    "MintRules",
    "Minter",
    "Partition",
    "Point",
    "Probe",
    "Range",
    "Reclocker",
    "RemapSource",
    "RemapTrace",
    "ResumptionOf",
    "Resumptions",
    "SourceFrontier",
    "SourceKind",
    "SourceQuarantined",
    "SourceTime",
    "Timeline",
    "UpstreamLost",
    "UpstreamRegressed",
    "UpstreamReplaced",
    "UserTimeline",
    "check_available",
    "check_claim",
    "check_clock",
    "claims_epoch",
    "encode_key",
    "incarnation_of",
    "offset_resumption",
    "offsets_of",
    "precedes",
    "reclock_frontier",
    "remap_since",
    "resumption",
    "s3_etags",
    "source_timeline",
    "source_upper_at_frontier",
    "status_shard",
    "succeeding",
    "succession",
    "timeline_of",
]
