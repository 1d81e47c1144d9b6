"""Options that describe the table itself. They are fixed when the table is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOption:
    """An option of `Table.create`: its key, its default as a string, and one sentence."""

    key: str
    default: str
    text: str


#: Readers of a new table, from which its version follows.
READERS = "lakehouse.readers"

VERSION = "hoodie.write.table.version"

CREATE_DECLARATIONS = (
    CreateOption(
        key=VERSION,
        default="9",
        text="Version of the table format: 9, 8 or 6.",
    ),
    CreateOption(
        key=READERS,
        default="",
        text="Readers of the table, comma separated, such as `hudi 0.15,trino`. The table gets the greatest version "
        "that all of them read.",
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
CREATE_DEFAULTS = {declared.key: declared.default for declared in CREATE_DECLARATIONS}


def declared_readers(options: Mapping[str, str]) -> list[str]:
    """Return the readers in the options of a new table."""
    return [name.strip() for name in options.get(READERS, "").split(",") if name.strip()]
