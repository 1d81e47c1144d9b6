"""The modules whose tests take longest, so that no worker of a stage runs long after the others."""

from __future__ import annotations

from collections.abc import Sequence

#: They start first, in this order: from about 400 s, where Airflow runs, to 40 s. With `--dist loadfile` a worker runs
#: all tests of a module.
LONGEST = (
    "tests/airflow/test_end_to_end.py",
    "tests/airflow/test_demo.py",
    "tests/airflow/test_faults.py",
    "tests/airflow/test_publish_scheduled.py",
    "tests/airflow/test_schedule.py",
    "tests/airflow/test_missing_pools.py",
    "tests/airflow/test_services.py",
    "tests/airflow/test_publish.py",
    "tests/airflow/test_lineage.py",
    "tests/spark/test_doc_blocks.py",
    "tests/unit/test_doc_blocks.py",
    "tests/databases/test_postgres_runs.py",
    "tests/spark/test_published.py",
    "tests/interop/test_writes_to_hudi_merge_on_read_tables.py",
    "tests/spark/test_ingest_run.py",
    "tests/interop/test_expression_indexes.py",
    "tests/databases/test_postgres_kills.py",
    "tests/interop/test_metadata_actions_of_hudi.py",
    "tests/spark/test_schema_drift.py",
    "tests/kafka/test_kafka_faults.py",
    "tests/databases/test_windows.py",
    "tests/databases/test_how_to.py",
    "tests/interop/test_archive.py",
    "tests/spark/test_fixture_slices.py",
    "tests/property/test_service_runs.py",
    "tests/unit/test_contributing.py",
    "tests/spark/test_table_source.py",
    "tests/spark/test_merge_on_read.py",
    "tests/property/test_clean_crashes.py",
    "tests/interop/test_hive_sync.py",
    "tests/spark/test_merge_on_read_specs.py",
    "tests/interop/test_tables_read_by_hudi.py",
    "tests/spark/test_ingest_read.py",
    "tests/property/test_mor_crashes.py",
    "tests/spark/test_ingest_stream.py",
    "tests/simulation/test_metadata.py",
    "tests/golden/test_pruned_reads.py",
    "tests/interop/test_record_index.py",
    "tests/databases/test_mysql_runs.py",
    "tests/contract/test_fleet_pass.py",
    "tests/interop/test_clustering.py",
    "tests/property/test_crashes.py",
    "tests/interop/test_cdc.py",
    "tests/property/test_restore_crashes.py",
    "tests/kafka/test_kafka_runs.py",
    "tests/golden/test_fixture_tables.py",
    "tests/spark/test_source.py",
)


def by_length(tests: Sequence[str]) -> list[int]:
    """Return the positions of test ids in the order in which they run; the order of other modules is kept."""
    place = {path: number for number, path in enumerate(LONGEST)}
    return sorted(range(len(tests)), key=lambda number: place.get(tests[number].partition("::")[0], len(LONGEST)))
