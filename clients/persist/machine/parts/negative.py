"""Rows that a merge finds there less than no times: something took them back that were never there.

Only a merge of everything up to the since can know: elsewhere what took a row back may lie in one batch, and the row in
another. Source: sources.md; reliability.md I19; docs/runbook.md.
"""

import pyarrow as pa
import pyarrow.compute as pc

from persist.core.data.schema import DIFF, TS


class TakenBack:
    """Counts them while a merge's rows pass by, at ``since``: later ones may be there again by then."""

    def __init__(self, since: int) -> None:
        self._since = pa.scalar(since, TS.type)
        self.rows = 0

    def look_at(self, merged: pa.RecordBatch) -> None:
        """Count those of some merged rows, each of which comes once a time. Vectorised, and next to nothing mostly."""
        diffs = merged.column(DIFF.name)
        if merged.num_rows == 0 or pc.min(diffs).as_py() >= 0:
            return
        wrong = pc.and_(pc.less(diffs, 0), pc.less_equal(merged.column(TS.name), self._since))
        self.rows += pc.sum(wrong).as_py()
