"""Sync an ingested table to a Hive Metastore after its commit; `lakehouse sync` is a table service."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.publish.sync import sync
from lakehouse.spec.contracts.job import IngestReport

logger = logging.getLogger(__name__)


def synced(report: IngestReport, location: str, options: Mapping[str, str], access: Mapping[str, str]) -> IngestReport:
    """Sync an ingested table to the metastore; an error becomes a warning in the report.

    The rows are committed, so an error of the metastore must not fail the job. The next run syncs all changes.
    """
    try:
        table = Table.open(location, options=options, storage_options=access)
        with closing(open_metastore(table.services_as_loaded.policies.sync)) as metastore:
            sync(table, metastore)
    except Exception as error:
        unknown = not isinstance(error, LakehouseError)
        logger.warning("table %s: the sync to the metastore failed: %s", report.table, error, exc_info=unknown)
        return replace(report, warning=f"metastore sync: {type(error).__name__}: {error}")
    return report
