"""What authors of source readers and pipelines need of source times and bindings, in one place.

Source: design 003; catalog-semantics.md section 4; sources.md.
"""

from persist.client.blocking_minter import Minter
from persist.client.minting import Bound, RemapSource, ResumptionOf, ResumptionTold
from persist.core.data.encoding import encode_key
from persist.core.time.binding_log import Append, BindingLog, Covered, MintRules
from persist.core.time.probe import Probe, check_available
from persist.core.time.reclock import Reclocker, reclock_frontier, source_upper_at_frontier
from persist.core.time.refusals import ClockAhead, JumpTooLarge, UpstreamLost, UpstreamRegressed, UpstreamReplaced
from persist.core.time.remap import Binding, RemapTrace
from persist.core.time.resumption import Export, offset_resumption, offsets_of, remap_since, resumption
from persist.core.time.source_frontier import SourceFrontier
from persist.core.time.source_time import OFFSET_MAX, Lsn, Partition, Point, Range, SourceKind, SourceTime

__all__ = [
    "OFFSET_MAX",
    "Append",
    "Binding",
    "BindingLog",
    "Bound",
    "ClockAhead",
    "Covered",
    "Export",
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
    "ResumptionTold",
    "SourceFrontier",
    "SourceKind",
    "SourceTime",
    "UpstreamLost",
    "UpstreamRegressed",
    "UpstreamReplaced",
    "check_available",
    "encode_key",
    "offset_resumption",
    "offsets_of",
    "reclock_frontier",
    "remap_since",
    "resumption",
    "source_upper_at_frontier",
]
