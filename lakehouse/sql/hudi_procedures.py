"""The procedures of Apache Hudi 1.2 by name: the procedure here with the same meaning, or the alternative."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.spec.table.services import VERSION_CHANGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A procedure of this package with the meaning of Hudi's.

    Attributes:
        procedure: Its name.
        positional: The names of Hudi's arguments in their order, with the names here.
        renamed: Arguments whose names differ.
        fixed: Arguments that the alias sets.
    """

    procedure: str
    positional: tuple[str, ...] = ("table",)
    renamed: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)


def _service(name: str, op: str, **renamed: str) -> Alias:
    return Alias(procedure=name, positional=("table", "op"), renamed=renamed, fixed={"op": op})


_INSTANT = {"instant_time": "instant", "commit_time": "instant", "instant": "instant"}
#: Values of the argument `op` in Hudi's run_compaction and run_clustering.
OPERATIONS = {"schedule": "schedule", "run": "run", "execute": "run", "scheduleandexecute": "run"}

#: Names of table versions in Apache Hudi.
_WORDS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
VERSION_WORDS: Mapping[str, str] = {word: str(number) for number, word in enumerate(_WORDS)}

ALIASES: Mapping[str, Alias] = {
    "archive_commits": _service("archive", "run"),
    "create_metadata_table": Alias(procedure="metadata", fixed={"op": "rebuild"}),
    "create_savepoint": Alias(
        procedure="savepoint",
        positional=("table", "instant", "user", "comments"),
        renamed={**_INSTANT, "comments": "comment"},
        fixed={"op": "create"},
    ),
    "delete_savepoint": Alias(
        procedure="savepoint", positional=("table", "instant"), renamed=_INSTANT, fixed={"op": "delete"}
    ),
    **{
        f"{verb}_table": Alias(
            procedure=verb,
            positional=("table", "to_version"),
            renamed={"to_version": "version"},
            fixed={"op": "run"},
        )
        for verb in VERSION_CHANGES
    },
    "drop_partition": Alias(procedure="drop_partition", positional=("table", "partition")),
    "help": Alias(procedure="help", positional=("cmd",), renamed={"cmd": "procedure"}),
    "init_metadata_table": Alias(procedure="metadata", fixed={"op": "rebuild"}),
    "rollback_to_instant": Alias(
        procedure="restore", positional=("table", "instant_time"), renamed={"instant_time": "to", "instant": "to"}
    ),
    "rollback_to_savepoint": Alias(
        procedure="restore", positional=("table", "instant_time"), renamed={"instant_time": "to", "instant": "to"}
    ),
    "run_clean": _service("clean", "run"),
    "run_clustering": Alias(procedure="clustering", positional=("table",), renamed={"op": "op"}, fixed={"op": "run"}),
    "run_compaction": Alias(
        procedure="compaction",
        positional=("op", "table"),
        renamed={"timestamp": "instant"},
        fixed={"op": "run"},
    ),
    "run_ttl": _service("ttl", "run"),
    "show_archived_commits": Alias(procedure="show_commits", fixed={"archived": "true"}),
    "show_cleans": Alias(procedure="clean", positional=("table", "limit"), fixed={"op": "show"}),
    "show_clean_plans": Alias(procedure="clean", positional=("table", "limit"), fixed={"op": "show"}),
    "show_clustering": Alias(procedure="clustering", positional=("table", "limit"), fixed={"op": "show"}),
    "show_commit_extra_metadata": Alias(
        procedure="show_instant", positional=("table", "limit", "instant_time"), renamed=_INSTANT
    ),
    "show_commit_files": Alias(
        procedure="show_commit_files", positional=("table", "limit", "instant_time"), renamed=_INSTANT
    ),
    "show_commit_partitions": Alias(
        procedure="show_commit_partitions", positional=("table", "limit", "instant_time"), renamed=_INSTANT
    ),
    "show_commit_write_stats": Alias(
        procedure="show_commit_files", positional=("table", "limit", "instant_time"), renamed=_INSTANT
    ),
    "show_commits": Alias(procedure="show_commits", positional=("table", "limit")),
    "show_commits_metadata": Alias(procedure="show_commits", positional=("table", "limit")),
    "show_compaction": Alias(procedure="compaction", positional=("table", "limit"), fixed={"op": "show"}),
    "show_fsview_all": Alias(procedure="show_files", positional=("table", "max_instant", "include_max")),
    "show_fsview_latest": Alias(
        procedure="show_files", positional=("table", "partition_path"), renamed={"partition_path": "partition"}
    ),
    "show_metadata_table_files": Alias(procedure="show_files", positional=("table", "partition")),
    "show_metadata_table_partitions": Alias(procedure="show_partitions"),
    "show_metadata_table_stats": Alias(procedure="metadata", fixed={"op": "show"}),
    "show_rollbacks": Alias(procedure="show_timeline", positional=("table", "limit"), fixed={"action": "rollback"}),
    "show_savepoints": Alias(procedure="savepoint", fixed={"op": "list"}),
    "show_table_properties": Alias(procedure="show_properties", positional=("table", "path", "limit")),
    "show_timeline": Alias(procedure="show_timeline", positional=("table", "limit")),
    "stats_file_sizes": Alias(
        procedure="show_files", positional=("table", "partition_path"), renamed={"partition_path": "partition"}
    ),
    "truncate_table": Alias(procedure="truncate_table"),
    "validate_metadata_table_files": Alias(procedure="metadata", fixed={"op": "validate"}),
    "run_rollback_inflight_tableservice": Alias(
        procedure="rollback",
        positional=("table", "pending_instant"),
        renamed={"pending_instant": "instant"},
    ),
    "show_rollback_detail": Alias(procedure="show_instant", positional=("table", "instant_time"), renamed=_INSTANT),
}

_OF_FILES = "the format of this package needs no such repair; CALL lakehouse.validate(table => '...') checks a table"
_BOOTSTRAP = "lakehouse table bootstrap --source PATH --name ... makes a table from Parquet files"
_LOCKS = "locks are held for a commit only; options hoodie.write.lock.* choose a provider"
#: Procedures without an equivalent, each with the alternative.
OTHERS: Mapping[str, str] = {
    "cleanup_audit_lock": _LOCKS,
    "commits_compare": "compare CALL lakehouse.show_commits(table => '...') of the two tables",
    "copy_to_table": "CREATE TABLE ... USING lakehouse AS SELECT * FROM t",
    "copy_to_temp_view": "CREATE TEMPORARY VIEW v AS SELECT * FROM t",
    "delete_marker": "CALL lakehouse.rollback(table => '...', op => 'failed') removes a failed write with its markers",
    "delete_metadata_table": "CALL lakehouse.metadata(table => '...', op => 'rebuild'), or set "
    "'hoodie.metadata.enable' = 'false'",
    "export_instants": "copy the files below .hoodie/timeline",
    "hdfs_parquet_import": "CREATE TABLE ... USING lakehouse AS SELECT * FROM parquet.`/path`",
    "hive_sync": "lakehouse sync run --table namespace.table",
    "repair_add_partition_meta": _OF_FILES,
    "repair_corrupted_clean_files": _OF_FILES,
    "repair_deduplicate": "CALL lakehouse.validate(table => '...', deep => true, keys => 'global') finds duplicates; "
    "MERGE or DELETE removes them",
    "repair_migrate_partition_meta": _OF_FILES,
    "repair_overwrite_hoodie_props": "ALTER TABLE ... SET TBLPROPERTIES changes properties",
    "run_bootstrap": _BOOTSTRAP,
    "set_audit_lock": _LOCKS,
    "show_audit_lock_status": _LOCKS,
    "show_archived_commits_metadata": "CALL lakehouse.show_commits(table => '...', archived => true)",
    "show_bootstrap_mapping": _BOOTSTRAP,
    "show_bootstrap_partitions": _BOOTSTRAP,
    "show_cleans_metadata": "CALL lakehouse.show_instant(table => '...', instant => '...')",
    "show_file_status": "CALL lakehouse.show_files(table => '...', partition => '...')",
    "show_fs_path_detail": "CALL lakehouse.show_files(table => '...')",
    "show_invalid_parquet": "CALL lakehouse.validate(table => '...', deep => true)",
    "show_logfile_metadata": "CALL lakehouse.show_files(table => '...')",
    "show_logfile_records": "SELECT * FROM hudi_table_changes('...', 'latest_state', 'earliest')",
    "show_metadata_column_stats_overlap": "CALL lakehouse.clustering(table => '...', op => 'plan')",
    "show_metadata_table_column_stats": "lakehouse table read --table ... --where ... --explain shows pruning",
    "stats_wa": "CALL lakehouse.show_commits(table => '...') has the records and bytes of each commit",
    "sync_validate": "lakehouse sync plan --table namespace.table",
    "validate_audit_lock": _LOCKS,
}
