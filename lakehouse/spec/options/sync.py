"""Options of metastore sync, with Hudi's keys: which Hive Metastore shows a table, and under which names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option
from lakehouse.spec.quantities import LONGEST_HOURS

METASTORE_URIS = "hoodie.datasource.hive_sync.metastore.uris"
METASTORE_VARIABLE = "LAKEHOUSE_METASTORE"
_PREFIX = "hoodie.datasource.hive_sync"
SYNC_ENABLE = f"{_PREFIX}.enable"
VERIFY_HOURS = "lakehouse.sync.verify.hours"
_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")
_LONGEST_TIMEOUT_S = 86_400
ALL, RO, RT = "ALL", "RO", "RT"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPolicy:
    """Whether, where and under which names a Hive Metastore shows a table."""

    enabled: bool = option(
        SYNC_ENABLE,
        False,
        "Ingestion syncs the table to the metastore after each commit, and the service `sync` after other writes. A "
        "failed sync does not fail the commit.",
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
        """Raise UserError for names that a metastore does not accept."""
        for key, name in ((f"{_PREFIX}.database", self.database), (f"{_PREFIX}.table", self.table or "t")):
            if not _NAME.fullmatch(name):
                raise SettingError(
                    f"option {key}={name!r} is not a valid name: use letters, digits and _, at most 128", setting=key
                )
        if self.timeout_s < 1:
            raise SettingError(
                f"option lakehouse.sync.timeout_s={self.timeout_s}: must be at least 1",
                setting="lakehouse.sync.timeout_s",
            )
