"""Plans a read by the kind of its query."""

from __future__ import annotations

from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.cdc import ChangeScan, plan_change_read
from lakehouse.core.operations.read.queries import Changes, ScanRequest
from lakehouse.core.operations.read.scan import Scan, plan_row_read


def plan_read(table: LoadedTable, request: ScanRequest) -> Scan | ChangeScan:
    """Plan a read without opening data files: a ChangeScan for `Changes`, a Scan for all other queries.

    Raises the errors of `plan_row_read` and `plan_change_read`.
    """
    if isinstance(request.query, Changes):
        return plan_change_read(table, request.query, request)
    return plan_row_read(table, request.query, request)
