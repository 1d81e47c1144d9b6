"""Avro schemas of timeline files, with fields in Hudi's order (TL-4.1 to TL-4.9).

Hudi's Java reader resolves a file against its own classes. Therefore full names, field order and the `avro.java.string`
properties equal Hudi's; tests compare them with the schemas in files that Hudi wrote.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_NAMESPACE = "org.apache.hudi.avro.model"
_STRING: Schema = {"type": "string", "avro.java.string": "String"}
_VERSION: Schema = {"name": "version", "type": ["int", "null"], "default": 1}


def _array(items: Any) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Any) -> Schema:
    return {"type": "map", "values": values, "avro.java.string": "String"}


def _field(name: str, kind: Any) -> Schema:
    return {"name": name, "type": kind}


def _optional(name: str, kind: Any) -> Schema:
    return {"name": name, "type": ["null", kind], "default": None}


def _nested(name: str, *fields: Schema) -> Schema:
    return {"type": "record", "name": name, "fields": list(fields)}


def _top(name: str, *fields: Schema) -> Schema:
    return {"type": "record", "name": name, "namespace": _NAMESPACE, "fields": list(fields)}


def _write_stat() -> Schema:
    runtime = _nested(
        "HoodieRuntimeStats",
        _optional("totalScanTime", "long"),
        _optional("totalCreateTime", "long"),
        _optional("totalUpsertTime", "long"),
    )
    return _nested(
        "HoodieWriteStat",
        _optional("fileId", _STRING),
        _optional("path", _STRING),
        _optional("prevCommit", _STRING),
        _optional("numWrites", "long"),
        _optional("numDeletes", "long"),
        _optional("numUpdateWrites", "long"),
        _optional("totalWriteBytes", "long"),
        _optional("totalWriteErrors", "long"),
        _optional("partitionPath", _STRING),
        _optional("totalLogRecords", "long"),
        _optional("totalLogFiles", "long"),
        _optional("totalUpdatedRecordsCompacted", "long"),
        _optional("numInserts", "long"),
        _optional("totalLogBlocks", "long"),
        _optional("totalCorruptLogBlock", "long"),
        _optional("totalRollbackBlocks", "long"),
        _optional("fileSizeInBytes", "long"),
        _optional("logVersion", "int"),
        _optional("logOffset", "long"),
        _optional("baseFile", _STRING),
        _optional("logFiles", _array(_STRING)),
        _optional("cdcStats", _map("long")),
        _optional("prevBaseFile", _STRING),
        _optional("minEventTime", "long"),
        _optional("maxEventTime", "long"),
        _optional("runtimeStats", runtime),
        _optional("totalLogFilesCompacted", "long"),
        _optional("totalLogReadTimeMs", "long"),
        _optional("totalLogSizeCompacted", "long"),
        _optional("tempPath", _STRING),
        _optional("numUpdates", "long"),
    )


def _commit_fields() -> tuple[Schema, ...]:
    return (
        _optional("partitionToWriteStats", _map(_array(_write_stat()))),
        _optional("compacted", "boolean"),
        _optional("extraMetadata", _map(_STRING)),
        _VERSION,
        _optional("operationType", _STRING),
    )


def _clustering_plan() -> Schema:
    slice_info = _nested(
        "HoodieSliceInfo",
        _optional("dataFilePath", _STRING),
        _optional("deltaFilePaths", _array(_STRING)),
        _field("fileId", ["null", _STRING]),
        _optional("partitionPath", _STRING),
        _optional("bootstrapFilePath", _STRING),
        _VERSION,
    )
    group = _nested(
        "HoodieClusteringGroup",
        _optional("slices", _array(slice_info)),
        _optional("metrics", _map("double")),
        {"name": "numOutputFileGroups", "type": ["int", "null"], "default": 1},
        _optional("extraMetadata", _map(_STRING)),
        _VERSION,
    )
    strategy = _nested(
        "HoodieClusteringStrategy",
        _optional("strategyClassName", _STRING),
        _optional("strategyParams", _map(_STRING)),
        _VERSION,
    )
    return _nested(
        "HoodieClusteringPlan",
        _optional("inputGroups", _array(group)),
        _optional("strategy", strategy),
        _optional("extraMetadata", _map(_STRING)),
        _VERSION,
        _optional("preserveHoodieMetadata", "boolean"),
        _optional("missingSchedulePartitions", _array(_STRING)),
    )


def _instant_info() -> Schema:
    return _nested("HoodieInstantInfo", _field("commitTime", _STRING), _field("action", _STRING))


def _rollback_fields() -> tuple[Schema, ...]:
    return (
        _field("startRollbackTime", _STRING),
        _field("timeTakenInMillis", "long"),
        _field("totalFilesDeleted", "int"),
        _field("commitsRollback", _array(_STRING)),
        _field(
            "partitionMetadata",
            _map(
                _nested(
                    "HoodieRollbackPartitionMetadata",
                    _field("partitionPath", _STRING),
                    _field("successDeleteFiles", _array(_STRING)),
                    _field("failedDeleteFiles", _array(_STRING)),
                    _optional("rollbackLogFiles", _map("long")),
                    _optional("logFilesFromFailedCommit", _map("long")),
                )
            ),
        ),
        _VERSION,
        {"name": "instantsRollback", "type": _array(_instant_info()), "default": []},
    )


#: Content of completed commits and deltacommits, and of all inflight writes.
COMMIT_METADATA = _top("HoodieCommitMetadata", *_commit_fields())

#: Content of completed replacecommits.
REPLACE_COMMIT_METADATA = _top(
    "HoodieReplaceCommitMetadata", *_commit_fields(), _optional("partitionToReplaceFileIds", _map(_array(_STRING)))
)

#: Content of `replacecommit.requested` and `clustering.requested`.
REQUESTED_REPLACE_METADATA = _top(
    "HoodieRequestedReplaceMetadata",
    _optional("operationType", _STRING),
    _optional("clusteringPlan", _clustering_plan()),
    _optional("extraMetadata", _map(_STRING)),
    _VERSION,
)

#: Content of `rollback.requested`.
ROLLBACK_PLAN = _top(
    "HoodieRollbackPlan",
    _optional("instantToRollback", _instant_info()),
    _optional(
        "RollbackRequests",
        _array(
            _nested(
                "HoodieRollbackRequest",
                _field("partitionPath", _STRING),
                _optional("fileId", _STRING),
                _optional("latestBaseInstant", _STRING),
                {"name": "filesToBeDeleted", "type": _array(_STRING), "default": []},
                _optional("logBlocksToBeDeleted", _map("long")),
            )
        ),
    ),
    _VERSION,
)

#: Content of completed rollbacks.
ROLLBACK_METADATA = _top("HoodieRollbackMetadata", *_rollback_fields())

#: Content of completed savepoints.
SAVEPOINT_METADATA = _top(
    "HoodieSavepointMetadata",
    _field("savepointedBy", _STRING),
    _field("savepointedAt", "long"),
    _field("comments", _STRING),
    _field(
        "partitionMetadata",
        _map(
            _nested(
                "HoodieSavepointPartitionMetadata",
                _field("partitionPath", _STRING),
                _field("savepointDataFile", _array(_STRING)),
            )
        ),
    ),
    _VERSION,
)

#: Content of `restore.requested`.
RESTORE_PLAN = _top(
    "HoodieRestorePlan",
    {"name": "instantsToRollback", "type": _array(_instant_info()), "default": []},
    {**_VERSION, "default": 2},
    _optional("savepointToRestoreTimestamp", _STRING),
)

#: Content of completed restores.
RESTORE_METADATA = _top(
    "HoodieRestoreMetadata",
    _field("startRestoreTime", _STRING),
    _field("timeTakenInMillis", "long"),
    _field("instantsToRollback", _array(_STRING)),
    _field("hoodieRestoreMetadata", _map(_array(["null", _nested("HoodieRollbackMetadata", *_rollback_fields())]))),
    _VERSION,
    {"name": "restoreInstantInfo", "type": _array("HoodieInstantInfo"), "default": []},
)

#: Content of `compaction.requested` and `logcompaction.requested`.
COMPACTION_PLAN = _top(
    "HoodieCompactionPlan",
    _optional(
        "operations",
        _array(
            _nested(
                "HoodieCompactionOperation",
                _field("baseInstantTime", ["null", _STRING]),
                _optional("deltaFilePaths", _array(_STRING)),
                _optional("dataFilePath", _STRING),
                _field("fileId", ["null", _STRING]),
                _optional("partitionPath", _STRING),
                _optional("metrics", _map("double")),
                _optional("bootstrapFilePath", _STRING),
            )
        ),
    ),
    _optional("extraMetadata", _map(_STRING)),
    _VERSION,
    _optional(
        "strategy",
        _nested(
            "HoodieCompactionStrategy",
            _optional("compactorClassName", _STRING),
            _optional("strategyParams", _map(_STRING)),
            _VERSION,
        ),
    ),
    {"name": "preserveHoodieMetadata", "type": ["boolean", "null"], "default": False},
    _optional("missingSchedulePartitions", _array(_STRING)),
)


def _optional_map(name: str) -> Schema:
    # Hudi's schema has a default inside the type, too.
    return _optional(name, {**_map(_STRING), "default": None})


#: Content of `clean.requested`, and of `clean.inflight`.
CLEANER_PLAN = _top(
    "HoodieCleanerPlan",
    _optional(
        "earliestInstantToRetain",
        _nested(
            "HoodieActionInstant", _field("timestamp", _STRING), _field("action", _STRING), _field("state", _STRING)
        ),
    ),
    {"name": "lastCompletedCommitTimestamp", "type": _STRING, "default": ""},
    _field("policy", _STRING),
    _optional("filesToBeDeletedPerPartition", _map(_array(_STRING))),
    _VERSION,
    {
        "name": "filePathsToBeDeletedPerPartition",
        "type": [
            "null",
            _map(
                _array(
                    _nested(
                        "HoodieCleanFileInfo",
                        _optional("filePath", _STRING),
                        _optional("isBootstrapBaseFile", "boolean"),
                    )
                )
            ),
        ],
        "doc": "This field replaces the field filesToBeDeletedPerPartition",
        "default": None,
    },
    {
        "name": "partitionsToBeDeleted",
        "type": ["null", _array(_STRING)],
        "doc": "partitions to be deleted",
        "default": None,
    },
    _optional_map("extraMetadata"),
)

#: Content of completed cleans.
CLEAN_METADATA = _top(
    "HoodieCleanMetadata",
    _field("startCleanTime", _STRING),
    _field("timeTakenInMillis", "long"),
    _field("totalFilesDeleted", "int"),
    _field("earliestCommitToRetain", _STRING),
    {"name": "lastCompletedCommitTimestamp", "type": _STRING, "default": ""},
    _field(
        "partitionMetadata",
        _map(
            _nested(
                "HoodieCleanPartitionMetadata",
                _field("partitionPath", _STRING),
                _field("policy", _STRING),
                _field("deletePathPatterns", _array(_STRING)),
                _field("successDeleteFiles", _array(_STRING)),
                _field("failedDeleteFiles", _array(_STRING)),
                _optional("isPartitionDeleted", "boolean"),
            )
        ),
    ),
    _VERSION,
    _optional("bootstrapPartitionMetadata", {**_map("HoodieCleanPartitionMetadata"), "default": None}),
    _optional_map("extraMetadata"),
)


def _index_partition_infos() -> Schema:
    return _array(
        _nested(
            "HoodieIndexPartitionInfo",
            _VERSION,
            _optional("metadataPartitionPath", _STRING),
            _optional("indexUptoInstant", _STRING),
            _optional("extraMetadata", _map(_STRING)),
        )
    )


#: Content of `indexing.requested`.
INDEX_PLAN = _top("HoodieIndexPlan", _VERSION, _optional("indexPartitionInfos", _index_partition_infos()))

#: Content of completed indexing instants. Hudi's documentation of the first two fields describes another schema.
INDEX_METADATA = _top(
    "HoodieIndexCommitMetadata",
    {**_VERSION, "doc": "This field replaces the field filesToBeDeletedPerPartition"},
    {
        **_optional("operationType", _STRING),
        "doc": "This field replaces the field filesToBeDeletedPerPartition",
    },
    {
        **_optional("indexPartitionInfos", _index_partition_infos()),
        "doc": "This field contains the info for each partition that got indexed",
    },
)


#: A record of an archived timeline (version 6): the content of one file of an instant. Each nested record occurs
#: with its definition; see `archive_log`.
ARCHIVED_ENTRY = _top(
    "HoodieArchivedMetaEntry",
    _optional("hoodieCommitMetadata", COMMIT_METADATA),
    _optional("hoodieCleanMetadata", CLEAN_METADATA),
    _optional("hoodieRollbackMetadata", ROLLBACK_METADATA),
    _optional("hoodieSavePointMetadata", SAVEPOINT_METADATA),
    _optional("commitTime", _STRING),
    _optional("actionType", _STRING),
    _VERSION,
    _optional("hoodieCompactionPlan", COMPACTION_PLAN),
    _optional("hoodieCleanerPlan", CLEANER_PLAN),
    _optional("actionState", _STRING),
    _optional("hoodieReplaceCommitMetadata", REPLACE_COMMIT_METADATA),
    _optional("hoodieRequestedReplaceMetadata", REQUESTED_REPLACE_METADATA),
    _optional("HoodieInflightReplaceMetadata", COMMIT_METADATA),
    _optional("hoodieIndexCommitMetadata", INDEX_METADATA),
    _optional("stateTransitionTime", _STRING),
)
