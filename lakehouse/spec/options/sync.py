"""Options of metastore sync, with Hudi's keys: which metastore shows a table, under which names and in which form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option
from lakehouse.spec.quantities import LONGEST_HOURS

METASTORE_URIS = "hoodie.datasource.hive_sync.metastore.uris"
METASTORE_VARIABLE = "LAKEHOUSE_METASTORE"
HIVE_TOOL = "org.apache.hudi.hive.HiveSyncTool"
GLUE_TOOL = "org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool"
_PREFIX = "hoodie.datasource.hive_sync"
_GLUE = "hoodie.datasource.meta.sync.glue"
_PACKAGE = "org.apache.hudi.hive"
SYNC_ENABLE = f"{_PREFIX}.enable"
VERIFY_HOURS = "lakehouse.sync.verify.hours"
_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")
_LONGEST_TIMEOUT_S = 86_400
#: Maximum length of a parameter value that the database of a Hive Metastore stores.
_LONGEST_VALUE = 4000
_LARGEST_BATCH = 32_767
ALL, RO, RT = "ALL", "RO", "RT"
#: Classes of Hudi that return the values of a partition path.
(MULTIPLE, SINGLE, HIVE_STYLE, DAY, HOUR, UNPARTITIONED) = EXTRACTORS = (
    f"{_PACKAGE}.MultiPartKeysValueExtractor",
    f"{_PACKAGE}.SinglePartPartitionValueExtractor",
    f"{_PACKAGE}.HiveStylePartitionValueExtractor",
    f"{_PACKAGE}.SlashEncodedDayPartitionValueExtractor",
    f"{_PACKAGE}.SlashEncodedHourPartitionValueExtractor",
    f"{_PACKAGE}.NonPartitionedExtractor",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPolicy:
    """Whether, where, under which names and in which form a metastore shows a table."""

    enabled: bool = option(
        SYNC_ENABLE,
        False,
        "Ingestion syncs the table to the metastore after each commit, and the service `sync` after other writes. A "
        "failed sync does not fail the commit.",
        aliases=("hoodie.datasource.meta.sync.enable",),
    )
    tool: str = option(
        "hoodie.meta.sync.client.tool.class",
        HIVE_TOOL,
        "Kind of the metastore: a Hive Metastore, or AWS Glue.",
        choices=(HIVE_TOOL, GLUE_TOOL),
    )
    mode: str = option(f"{_PREFIX}.mode", "hms", "Protocol of the metastore: Thrift.", choices=("hms",))
    uris: str = option(
        METASTORE_URIS,
        "",
        "Hive Metastore: thrift://host:port, several comma separated, or airflow:<connection id>; default "
        "$LAKEHOUSE_METASTORE.",
        host=True,
    )
    database: str = option(
        f"{_PREFIX}.database", "default", "Database in the metastore; it is created if it is missing."
    )
    table: str = option(f"{_PREFIX}.table", "", "Name of the table in the metastore; default: the name of the table.")
    strategy: str = option(
        f"{_PREFIX}.table.strategy",
        ALL,
        "Merge-on-read: the tables <name>_ro (base files only) and <name>_rt (all rows), or one of them as <name>.",
        choices=(ALL, RO, RT),
    )
    snapshot_with_table_name: bool = option(
        "hoodie.meta.sync.sync_snapshot_with_table_name",
        True,
        "Merge-on-read, strategy ALL: also create the table <name> with all rows.",
    )
    timestamps: bool = option(
        f"{_PREFIX}.support_timestamp",
        False,
        "Declare times to Hive as timestamp instead of bigint. Spark always sees timestamp.",
    )
    skip_ro_suffix: bool = option(
        f"{_PREFIX}.skip_ro_suffix",
        False,
        "Merge-on-read, strategy ALL: the table of base files has the name <name>, not <name>_ro. There is no table "
        "<name> with all rows then, only <name>_rt.",
    )
    partition_fields: str = option(
        f"{_PREFIX}.partition_fields",
        "",
        "Partition columns in the metastore, comma separated; default: the partition columns of the table.",
    )
    partition_extractor: str = option(
        f"{_PREFIX}.partition_extractor_class",
        "",
        "How a partition path becomes values of the partition columns, escaped as in the path; default: by the "
        "partition columns of the table, not escaped.",
        choices=EXTRACTORS,
    )
    decode_partition: bool = option(
        "hoodie.meta.sync.decode_partition",
        False,
        "Also an extractor class returns values that are not escaped.",
    )
    omit_metadata_fields: bool = option(
        f"{_PREFIX}.omit_metadata_fields", False, "Declare no _hoodie_* columns in the metastore."
    )
    create_managed_table: bool = option(
        f"{_PREFIX}.create_managed_table",
        False,
        "Create a managed table: DROP TABLE in Hive also deletes its files. Existing tables stay as they are.",
    )
    sync_as_datasource: bool = option(
        f"{_PREFIX}.sync_as_datasource",
        True,
        "Store the properties by which Spark reads the table through Hudi.",
    )
    table_properties: str = option(
        f"{_PREFIX}.table_properties", "", "More properties of the table: one key=value per line."
    )
    serde_properties: str = option(
        f"{_PREFIX}.serde_properties", "", "More properties of the SerDe: one key=value per line."
    )
    schema_piece: int = option(
        f"{_PREFIX}.schema_string_length_thresh",
        _LONGEST_VALUE,
        "Length at which Spark's schema is divided into several properties, in characters.",
        most=_LONGEST_VALUE,
    )
    auto_create_database: bool = option(
        f"{_PREFIX}.auto_create_database", True, "Create the database in the metastore if it is missing."
    )
    batch: int = option(
        f"{_PREFIX}.batch_num",
        1000,
        "Maximum number of partitions per request. Requests to AWS Glue have at most 100.",
        most=_LARGEST_BATCH,
    )
    incremental: bool = option(
        "hoodie.meta.sync.incremental",
        True,
        "Compare only the partitions that commits changed since the last sync, if the timeline still contains it; "
        "the daily comparison and `--force` compare all partitions.",
    )
    conditional: bool = option(
        "hoodie.datasource.meta_sync.condition.sync",
        False,
        "Store the last synced commit only if the table, its properties or its partitions changed.",
    )
    glue_database: str = option(f"{_GLUE}.database_name", "", "AWS Glue: name of the database; default: the database.")
    glue_table: str = option(f"{_GLUE}.table_name", "", "AWS Glue: name of the table; default: the table.")
    glue_skip_archive: bool = option(
        f"{_GLUE}.skip_table_archive", True, "AWS Glue: changes of the table add no version of it to its history."
    )
    glue_metadata_listing: bool = option(
        f"{_GLUE}.metadata_file_listing", False, "AWS Glue: Athena lists files in the metadata table."
    )
    glue_region: str = option(
        "hoodie.aws.glue.region", "", "AWS Glue: region; default: from the environment of the AWS client."
    )
    glue_endpoint: str = option(
        "hoodie.aws.glue.endpoint", "", "AWS Glue: address of the service; default: by the region.", host=True
    )
    glue_catalog: str = option(
        f"{_GLUE}.catalogId", "", "AWS Glue: id of the catalog, for example another account; default: the own account."
    )
    renamed_columns: bool = option(
        "lakehouse.sync.renamed.columns",
        False,
        "Also sync a table whose older files have other names for a column, because it was renamed, or dropped and "
        "added again. Only readers that use the schema-on-read of Apache Hudi return the right values of such files.",
    )
    timeout_s: int = option(
        "lakehouse.sync.timeout_s",
        60,
        "Maximum time to wait for a reply of the metastore, in seconds.",
        most=_LONGEST_TIMEOUT_S,
    )
    verify_hours: int = option(
        VERIFY_HOURS,
        24,
        "Hours after which the service `sync` compares a table without new writes again, because another program may "
        "have changed or dropped it in the metastore; 0: never.",
        most=LONGEST_HOURS,
    )

    def __post_init__(self) -> None:
        """Raise SettingError for names and values that a metastore does not accept."""
        for key, name in (
            (f"{_PREFIX}.database", self.database),
            (f"{_PREFIX}.table", self.table or "t"),
            (f"{_GLUE}.database_name", self.glue_database or "d"),
            (f"{_GLUE}.table_name", self.glue_table or "t"),
        ):
            if not _NAME.fullmatch(name):
                raise SettingError(
                    f"option {key}={name!r} is not a valid name: use letters, digits and _, at most 128", setting=key
                )
        self._check_partition_fields()
        for key, number in (
            ("lakehouse.sync.timeout_s", self.timeout_s),
            (f"{_PREFIX}.batch_num", self.batch),
            (f"{_PREFIX}.schema_string_length_thresh", self.schema_piece),
        ):
            if number < 1:
                raise SettingError(f"option {key}={number}: must be at least 1", setting=key)
        _properties(f"{_PREFIX}.table_properties", self.table_properties)
        _properties(f"{_PREFIX}.serde_properties", self.serde_properties)

    @property
    def is_glue(self) -> bool:
        """Return whether the metastore is AWS Glue."""
        return self.tool == GLUE_TOOL

    @property
    def target_database(self) -> str:
        """Return the name of the database in the metastore."""
        return (self.is_glue and self.glue_database) or self.database

    @property
    def target_table(self) -> str:
        """Return the name of the table in the metastore; empty for the name of the Hudi table."""
        return (self.is_glue and self.glue_table) or self.table

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Return the declared partition columns; empty if the table's partition columns apply."""
        return tuple(name.strip() for name in self.partition_fields.split(",") if name.strip())

    @property
    def extra_parameters(self) -> Mapping[str, str]:
        """Return the declared properties of the table."""
        return _properties(f"{_PREFIX}.table_properties", self.table_properties)

    @property
    def extra_serde_properties(self) -> Mapping[str, str]:
        """Return the declared properties of the SerDe."""
        return _properties(f"{_PREFIX}.serde_properties", self.serde_properties)

    def _check_partition_fields(self) -> None:
        key, columns = f"{_PREFIX}.partition_fields", self.partition_columns
        if len({name.lower() for name in columns}) < len(columns):
            raise SettingError(f"option {key}={self.partition_fields!r} contains a column twice", setting=key)
        if self.partition_extractor == UNPARTITIONED and columns:
            raise SettingError(
                f"option {key}={self.partition_fields!r}: {UNPARTITIONED} returns no values; remove one of the options",
                setting=key,
                related=(f"{_PREFIX}.partition_extractor_class",),
            )


def _properties(key: str, text: str) -> dict[str, str]:
    """Parse Hudi's form of a mapping, `key=value` lines; raise SettingError for a line without `=`."""
    properties = {}
    for line in filter(None, map(str.strip, text.split("\n"))):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise SettingError(f"option {key}: line {line!r} is not key=value", setting=key)
        properties[name.strip()] = value.strip()
    return properties
