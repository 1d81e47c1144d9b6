"""Tests that CI leaves out, because they take long; `make test-all` runs them.

They start a whole Airflow for behaviour that cheaper tests show in parts, install environments with pip, or repeat a
long test for another table type, index or operation. Of tests with many similar cases one in six runs,
and of modules with many tests of one feature on a server every second test.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

_TESTS = (
    # Builds the wheel, installs two environments with pip and follows a page. Nothing else in CI does.
    "tests/adoption/test_new_user.py",
    # The same page with older versions of Airflow and Spark. The matrix runs both in CI.
    "tests/adoption/test_older_versions.py",
    # A whole Airflow with its triggerer. test_cluster_mode.py runs the trigger in this process.
    "tests/airflow/test_deferred_application.py",
    # Needs jars that Maven Central does not have. test_metadata_histories.py compares the same histories.
    "tests/interop/test_metadata_validator.py",
    # Another process of Hudi, with the jars of S3A. test_concurrent_writers.py has the same lock on a local disk.
    "tests/interop/test_storage_lock_on_s3.py",
    # Two more releases of Apache Hudi. test_readers.py tries the one before and the one after them.
    "tests/interop/test_readers_of_other_releases.py",
    # Faults of a running Airflow. test_operators.py and test_stream_watch.py show how operators handle them.
    "tests/airflow/test_faults.py",
    "tests/airflow/test_missing_pools.py",
    "tests/airflow/test_demo.py::test_demo_ends_with_the_log_of_a_failed_task",
    "tests/airflow/test_demo.py::test_backfill_on_sqlite_is_refused_with_the_reason_and_airflow_runs_on",
    # Another Airflow for the publication. test_publish.py publishes in one, and test_dags.py shows the schedules.
    "tests/airflow/test_publish_scheduled.py",
    # Five jobs of Spark; test_services.py runs services by their DAGs, and test_doc_blocks.py runs the page.
    "tests/airflow/test_take_over_night.py",
    # Another Airflow. test_api.py has the plans of the page, test_actions_dag.py a run, test_version_run.py changes.
    "tests/airflow/test_version_change_pages.py",
    # Ingests two intervals in this process. test_demo.py ingests by scheduled and triggered runs, the other tests of
    # this module by backfills and by runs that fail.
    "tests/airflow/test_end_to_end.py::test_two_batches_of_stock_ticks_make_197_rows",
    # Kills of commands with Spark. tests/property/test_ingest_kills.py and those of databases and Kafka show the same.
    "tests/spark/test_killed_ingest.py",
    # Kills of commands with a database. Runs that read it twice, cut connections and take turns with others run in CI.
    "tests/databases/test_mysql_kills.py",
    "tests/databases/test_postgres_kills.py",
    # A page with two runs of each command; test_postgres_runs.py has the same runs in this process.
    "tests/databases/test_how_to.py",
    # The stream of another trigger, killed in the same way.
    "tests/spark/test_killed_stream.py::test_killed_query_continues_without_loss_and_without_duplicates[2]",
    # Long pages; CI runs the blocks of eight other pages with Spark.
    "tests/spark/test_doc_blocks.py::test_code_blocks_of_a_page_with_spark_run_in_order[docs/how-to/derive-tables.md",
    "tests/spark/test_doc_blocks.py::test_code_blocks_of_a_page_with_spark_run_in_order[docs/how-to/write-a-source.md",
    # Five days of ingestions. The rides of this module are ingested and compacted in CI.
    "tests/spark/test_merge_on_read_specs.py::test_retention_tags_of_five_days_equal_a_naive_count",
    # 30 tables of two releases of Hudi. The page runs on a smaller lake in tests/unit/test_doc_blocks.py.
    "tests/interop/test_take_over.py",
    # More ways to lose and to start executors; test_executor_killed_while_it_writes_loses_and_repeats_no_row and
    # test_journey.py run in CI.
    "tests/clusters/test_kills.py::test_worker_killed_with_its_executor_loses_and_repeats_no_row",
    "tests/clusters/test_journey.py::test_upsert_on_a_local_cluster",
    "tests/clusters/test_journey.py::test_executors_that_spark_removes_and_starts_again_write_all_rows",
    "tests/clusters/test_kills.py::test_duplicate_attempts_of_slow_tasks_write_each_row_once",
    # Packs and unpacks a whole Python. The check of workers without packages runs in CI.
    "tests/clusters/test_archive.py::test_packed_python_runs_an_upsert_where_workers_have_no_packages",
    # Each close of a file on HDFS waits for half a second. The contracts of storages and locks run on HDFS in CI.
    "tests/hadoop/test_swap_races.py::test_killed_processes_lose_no_swap_of_others",
    "tests/hadoop/test_tables.py::test_killed_writes_are_rolled_back_by_the_next_write",
    "tests/hadoop/test_tables.py::test_concurrent_writers_lose_no_row",
    "tests/hadoop/test_tables.py::test_table_of_hudi_is_read_written_and_serviced",
    # The other tests of this module submit to YARN, too.
    "tests/airflow/test_yarn.py::test_compaction_runs_in_cluster_mode_with_its_report_on_hdfs",
    "tests/airflow/test_yarn.py::test_driver_gets_secrets_in_a_file_that_no_setting_contains",
    "tests/databases/test_postgres_stream.py::test_stream_follows_the_log_and_continues_after_sigkill",
)

#: CI runs one of this number of similar cases.
_STEP = 6
#: Tests with many similar cases: CI runs every sixth case of each test function, and at least one.
SAMPLED = (
    "tests/airflow/test_page_pictures.py",
    "tests/contract/test_fleet_backends.py",
    "tests/contract/test_fleet_pass.py",
    "tests/contract/test_fleet_views.py",
    "tests/contract/test_lock",
    "tests/databases/test_binlog_events.py",
    "tests/databases/test_mysql_runs.py",
    "tests/golden/test_pruned_reads.py",
    "tests/interop/",
    "tests/kafka/test_kafka_kills.py",
    "tests/property/test_archive.py",
    "tests/property/test_bucket_resizes.py",
    "tests/property/test_clean_crashes.py",
    "tests/property/test_clustering_crashes.py",
    "tests/property/test_crashes.py",
    "tests/property/test_early_conflict.py",
    "tests/property/test_ingest_kills.py",
    "tests/property/test_ingest_rewritten.py",
    "tests/property/test_kills.py",
    "tests/property/test_late_rows.py",
    "tests/property/test_located_writes.py",
    "tests/property/test_many_writers.py",
    "tests/property/test_metadata_service_crashes.py",
    "tests/property/test_mor_crashes.py",
    "tests/property/test_restore_crashes.py",
    "tests/property/test_service_runs.py",
    "tests/property/test_statement_races.py",
    "tests/property/test_storage_errors.py",
    "tests/property/test_ttl_crashes.py",
    "tests/property/test_validate.py",
    "tests/property/test_version_6_pollers.py",
    "tests/property/test_version_change_crashes.py",
    "tests/reliability/test_soak.py",
    "tests/reports/test_field_values.py",
    "tests/reports/test_orphaned_jobs.py",
    "tests/reports/test_partition_paths.py",
    "tests/reports/test_restarted_logs.py",
    "tests/reports/test_undecodable_bytes.py",
    "tests/reports/test_unused_text.py",
    "tests/reports/test_value_representations.py",
    "tests/s3/test_journey.py",
    "tests/s3/test_version_changes.py",
    "tests/simulation/test_known_losses.py::test_known_loss_does_not_happen_in_any_order",
    "tests/simulation/test_pairs.py",
    "tests/simulation/test_planted_bugs.py",
    "tests/spark/test_attached_catalog.py::test_statements_of_the_corpus_return_the_same_rows_as_duckdb",
    "tests/spark/test_cdc.py",
    "tests/spark/test_changed_rows.py",
    "tests/spark/test_filter_pushdown.py",
    "tests/spark/test_fixture_slices.py",
    "tests/spark/test_ingest_read.py",
    "tests/spark/test_ingest_run.py",
    "tests/spark/test_merge_on_read.py",
    "tests/spark/test_published.py",
    "tests/spark/test_schema_drift.py",
    "tests/spark/test_suggested_specs.py",
    "tests/spark/test_table_source.py",
    "tests/unit/test_contributing.py::test_recipe_can_be_followed_literally",
    "tests/unit/test_doc_blocks.py::test_code_blocks_of_a_page_run_in_order",
)

#: Modules with many tests of one feature on a server or with Apache Hudi: CI runs every second of their functions, in
#: order of their names.
HALVED = (
    "tests/airflow/test_lineage.py",
    "tests/airflow/test_publish.py",
    "tests/airflow/test_services.py",
    "tests/databases/test_mysql_runs.py",
    "tests/databases/test_postgres_runs.py",
    "tests/databases/test_windows.py",
    "tests/interop/test_alter.py",
    "tests/interop/test_clean.py",
    "tests/interop/test_clustering.py",
    "tests/interop/test_expression_indexes.py",
    "tests/interop/test_indexes.py",
    "tests/interop/test_log_files_read_by_hudi.py",
    "tests/interop/test_savepoint_restore.py",
    "tests/interop/test_tables_read_by_hudi.py",
    "tests/interop/test_writes_to_hudi_merge_on_read_tables.py",
    "tests/kafka/test_kafka_faults.py",
    "tests/kafka/test_kafka_runs.py",
    "tests/reports/",
    "tests/spark/test_file_",
    "tests/spark/test_ingest_read.py",
    "tests/spark/test_ingest_run.py",
    "tests/spark/test_merge_on_read.py",
    "tests/spark/test_published.py",
    "tests/spark/test_schema_drift.py",
    "tests/spark/test_table_source.py",
)

#: Cases of tests with Apache Hudi: the starts of their ids, by test in tests/interop. The case of the other table type
#: or index remains in CI.
_HUDI = {
    "test_archive.py::test_hudi_and_lakehouse_archive_a_table_in_turn": ("COPY_ON_WRITE]",),
    "test_clean.py::test_hudi_and_hudi_rs_use_the_table_after_a_clean_of_lakehouse": ("COPY_ON_WRITE]",),
    "test_clustering.py::test_hudi_and_lakehouse_execute_clustering_plans_of_each_other": ("COPY_ON_WRITE]",),
    "test_expression_indexes.py::test_hudi_uses_and_updates_indexes_that_lakehouse_built": ("COPY_ON_WRITE]",),
    "test_expression_indexes.py::test_indexes_of_hudi_are_maintained_as_hudi_would_build_them": ("COPY_ON_WRITE]",),
    "test_expression_indexes.py::test_indexes_of_version_8_tables_are_built_and_maintained": ("COPY_ON_WRITE]",),
    "test_hudi_sql.py::test_hudi_sql_and_lakehouse_write_a_table_in_turn": ("simple-hive-8]",),
    "test_indexes.py::test_hudi_reads_our_indexings_and_uses_our_secondary_index": ("COPY_ON_WRITE]",),
    "test_metadata_actions_of_hudi.py::test_hudi_undoes_and_services_tables_with_our_metadata_table": (
        "COPY_ON_WRITE]",
    ),
    "test_metadata_services.py::test_hudi_reads_and_compacts_a_metadata_table_that_lakehouse_compacted": (
        "compaction-COPY_ON_WRITE]",
        "log compaction-COPY_ON_WRITE]",
    ),
    "test_metadata_tables.py::test_hudi_and_lakehouse_write_a_table_with_our_metadata_table_in_turn": (
        "COPY_ON_WRITE]",
    ),
    "test_metadata_tables.py::test_lakehouse_keeps_the_metadata_table_of_a_hudi_table": ("COPY_ON_WRITE]",),
    "test_partition_buckets.py::test_hudi_and_lakehouse_use_the_same_buckets_after_a_rescale": ("COPY_ON_WRITE]",),
    "test_record_index.py::test_hudi_and_lakehouse_upsert_a_table_of_ours_in_turn_by_its_indexes": (
        "BLOOM-COPY_ON_WRITE]",
        "RECORD_INDEX-MERGE_ON_READ]",
    ),
    "test_savepoint_restore.py::test_hudi_finishes_a_crashed_restore_of_lakehouse": ("COPY_ON_WRITE]",),
    "test_savepoint_restore.py::test_hudi_reads_and_writes_after_a_restore_of_lakehouse": ("COPY_ON_WRITE]",),
}

#: Cases of crashes and interleavings at any step, by test in tests/property. CI keeps an index without log files or one
#: with them, and of operations that share most of their code only one: `upsert` stands for `insert` and `bulk_insert`,
#: and another operation that replaces files for `insert_overwrite` or `insert_overwrite_table`.
_CLUSTERING = "test_clustering_crashes.py::test"
_SAME_CODE = ("insert-", "bulk_insert-", "insert_overwrite-")
_PROPERTY = {
    "test_clean_crashes.py::test_next_clean_completes_the_work_after_a_crash_at_any_step": ("LOGS_SIMPLE-",),
    f"{_CLUSTERING}_clustering_loses_no_row_when_a_write_runs_at_any_of_its_steps": _SAME_CODE,
    f"{_CLUSTERING}_write_fails_only_before_its_start_when_a_clustering_runs_at_any_of_its_steps": _SAME_CODE,
    f"{_CLUSTERING}_write_of_a_single_writer_commits_when_a_planned_clustering_runs_at_any_of_its_steps": _SAME_CODE,
    "test_crashes.py::test_stale_writer_commits_all_or_nothing_after_its_rollback": (
        "bulk_insert]",
        "insert_overwrite_table]",
    ),
    "test_index_crashes.py::test_next_run_completes_an_index_after_a_crash_at_any_step": ("SIMPLE]",),
    "test_ingest_rewritten.py::test_ingestion_commits_one_version_of_a_file_rewritten_at_any_step": ("bulk_insert-",),
    "test_kills.py::test_killed_process_is_detected_and_its_files_are_removed": _SAME_CODE,
    "test_many_writers.py::test_optimistic_writes_are_serializable_when_they_interleave_at_any_step": (
        "BUCKET-",
        "LOGS_SIMPLE-",
    ),
    "test_mor_crashes.py::test_plan_is_scheduled_and_executed_at_any_step_of_a_writer": ("insert-",),
    "test_mor_crashes.py::test_writer_commits_at_any_step_of_a_running_plan": (
        "compaction-LOGS_BUCKET]",
        "log compaction-LOGS_SIMPLE]",
    ),
    "test_record_index.py::test_record_index_of_a_merge_on_read_table_has_its_keys": ("GLOBAL_BLOOM]", "BLOOM]"),
    "test_restore_crashes.py::test_next_restore_completes_the_restore_after_a_lost_reply_at_any_step": (
        "LOGS_SIMPLE]",
    ),
    "test_restore_crashes.py::test_third_process_completes_the_restore_after_two_crashes": ("LOGS_SIMPLE]",),
    "test_restore_crashes.py::test_writer_during_a_restore_is_refused_or_undone_or_commits_after_it": ("LOGS_SIMPLE]",),
    "test_storage_errors.py::test_operation_keeps_rows_and_names_the_cause_when_the_disk_fails_at_any_call": _SAME_CODE,
}

#: The starts of their node ids. tests/unit/test_stages.py checks that each still names a test.
EXTENDED = (
    *_TESTS,
    *(f"tests/interop/{test}[{case}" for test, cases in _HUDI.items() for case in cases),
    *(f"tests/property/{test}[{case}" for test, cases in _PROPERTY.items() for case in cases),
)


def extended_tests(tests: Iterable[str]) -> set[str]:
    """Return the node ids, among all collected ones, of the tests that CI leaves out."""
    found, cases, modules = set(), dict[str, list[str]](), dict[str, dict[str, list[str]]]()
    for test in tests:
        function = test.partition("[")[0]
        if test.startswith(EXTENDED):
            found.add(test)
            continue
        if test.startswith(SAMPLED):
            cases.setdefault(function, []).append(test)
        if test.startswith(HALVED):
            modules.setdefault(function.partition("::")[0], {}).setdefault(function, []).append(test)
    for functions in modules.values():
        found |= {test for name in sorted(functions)[1::2] for test in functions[name]}
    for function, of_function in cases.items():
        # Functions begin with different cases, so that of two servers or table types each occurs in CI.
        step = min(len(of_function), _STEP)
        kept = of_function[crc32(function.encode()) % step :: step]
        found |= {*of_function} - {*kept}
    return found
