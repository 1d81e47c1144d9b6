"""Tests that CI leaves out, because they take minutes; `make test-all` runs them.

They start a whole Airflow for behaviour that cheaper tests show in parts, install environments with pip, or repeat a
long test with Apache Hudi for the other table type.
"""

from __future__ import annotations

#: The starts of their node ids. The architecture tests check that each still names a test.
EXTENDED = (
    # Builds the wheel, installs two environments with pip and follows a page. Nothing else in CI does.
    "tests/adoption/test_new_user.py",
    # Faults of a running Airflow. test_operators.py and test_stream_watch.py show how operators handle them.
    "tests/airflow/test_faults.py",
    "tests/airflow/test_missing_pools.py",
    "tests/airflow/test_demo.py::test_demo_ends_with_the_log_of_a_failed_task",
    "tests/airflow/test_demo.py::test_backfill_on_sqlite_is_refused_with_the_reason_and_airflow_runs_on",
    # The merge-on-read case remains in CI.
    "tests/interop/test_archive.py::test_hudi_and_lakehouse_archive_a_table_in_turn[COPY_ON_WRITE]",
    "tests/interop/test_clustering.py::test_hudi_and_lakehouse_execute_clustering_plans_of_each_other[COPY_ON_WRITE]",
    "tests/interop/test_expression_indexes.py::test_hudi_uses_and_updates_indexes_that_lakehouse_built[COPY_ON_WRITE]",
    "tests/interop/test_expression_indexes.py::test_indexes_of_hudi_are_maintained_as_hudi_would_build_them[COPY_ON_WRITE]",
    "tests/interop/test_expression_indexes.py::test_indexes_of_version_8_tables_are_built_and_maintained[COPY_ON_WRITE]",
    "tests/interop/test_hudi_sql.py::test_hudi_sql_and_lakehouse_write_a_table_in_turn[simple-hive-8]",
    "tests/interop/test_metadata_actions_of_hudi.py::test_hudi_undoes_and_services_tables_with_our_metadata_table[COPY_ON_WRITE]",
    "tests/interop/test_record_index.py::test_hudi_and_lakehouse_upsert_a_table_of_ours_in_turn_by_its_indexes[BLOOM-COPY_ON_WRITE]",
)
