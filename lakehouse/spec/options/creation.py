"""Options that describe the table itself. They are fixed when the table is created."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOption:
    """An option of `Table.create`: its key, its default as a string, and one sentence."""

    key: str
    default: str
    text: str


CREATE_DECLARATIONS = (
    CreateOption(
        key="hoodie.write.table.version",
        default="9",
        text="Version of the table format: 9 or 8.",
    ),
    CreateOption(
        key="hoodie.datasource.write.hive_style_partitioning",
        default="false",
        text="Partition paths have the names of the columns: `day=2026-01-01` instead of `2026-01-01`.",
    ),
    CreateOption(
        key="hoodie.datasource.write.partitionpath.urlencode",
        default="false",
        text="Special characters in partition paths are encoded as in URLs.",
    ),
    CreateOption(
        key="hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled",
        default="false",
        text="Record keys contain timestamps as strings, such as `2026-01-01 00:00:00.0`, not as epoch numbers.",
    ),
    CreateOption(
        key="hoodie.table.cdc.enabled",
        default="false",
        text="Commits write change logs, which readers of changes need.",
    ),
    CreateOption(
        key="hoodie.table.cdc.supplemental.logging.mode",
        default="DATA_BEFORE_AFTER",
        text="Contents of change logs. One of OP_KEY_ONLY, DATA_BEFORE, DATA_BEFORE_AFTER.",
    ),
)
#: The keys of these options.
CREATE_OPTIONS = frozenset(declared.key for declared in CREATE_DECLARATIONS)
