"""Check that a table can be published, from its metadata and one request to the metastore; no data file is listed."""

from __future__ import annotations

from lakehouse.core.operations.load.schema import table_schema
from lakehouse.platform.publish.job import PublishJob, data_schema, require_partitions


def check_publication(job: PublishJob) -> None:
    """Check the partitions and the columns of the table, and look its publication up in the metastore.

    Raises:
        UserError: The declared partitions do not fit the table.
        RetryableError: The metastore does not answer.
    """
    loaded = job.table.services_as_loaded.table
    require_partitions(job, loaded)
    schema = table_schema(loaded)
    if schema is not None:
        data_schema(job, loaded, schema)
    job.metastore.table(job.spec.database, job.spec.table)
