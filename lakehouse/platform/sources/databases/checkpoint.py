"""The checkpoint of a table with a database source: the log position, and the loaded part of the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.document import parse_json
from lakehouse.platform.sources.databases.server import LogPosition

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseCheckpoint:
    """The state of a source table, stored in the commits of the target table.

    Attributes:
        table: The source table, as `database.table`.
        position: All changes before it are in the table.
        loaded: The last loaded key of the snapshot; None if none is loaded. Chunks are loaded in key order.
        is_complete: Whether the whole snapshot is loaded.
        purges: Whether rows that are missing in the source are deleted when the snapshot is complete.
        kinds: The types of the source's columns when the run was planned.
        resnapshot: The id of the run that requested a new snapshot; empty if none did.
        incarnation: See `SourceTable`.
    """

    table: str
    position: LogPosition
    loaded: tuple[str, ...] | None = None
    is_complete: bool = False
    purges: bool = False
    kinds: Mapping[str, str] = field(default_factory=dict)
    resnapshot: str = ""
    incarnation: str = ""

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON."""
        value: dict[str, object] = {
            "version": VERSION,
            "table": self.table,
            "position": self.position.to_mapping(),
            "loaded": None if self.loaded is None else list(self.loaded),
            "complete": self.is_complete,
            "kinds": dict(self.kinds),
        }
        if self.purges:
            value["purges"] = True
        if self.resnapshot:
            value["resnapshot"] = self.resnapshot
        if self.incarnation:
            value["incarnation"] = self.incarnation
        return json.dumps(value, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> DatabaseCheckpoint:
        """Parse a checkpoint.

        Raises UnsupportedError for a newer version, CorruptTableError for a string that `to_json` did not write.
        """
        try:
            value = parse_json(text)
            version = value["version"]
            if version != VERSION:
                raise UnsupportedError(
                    f"the ingest checkpoint has version {version!r}, this package reads {VERSION}: update the package",
                    version=version,
                )
            loaded = value["loaded"]
            return cls(
                table=str(value["table"]),
                position=LogPosition.from_mapping(value["position"]),
                loaded=None if loaded is None else tuple(str(part) for part in loaded),
                is_complete=value["complete"] is True,
                purges=value.get("purges") is True,
                kinds={str(name): str(kind) for name, kind in value["kinds"].items()},
                resnapshot=str(value.get("resnapshot") or ""),
                incarnation=str(value.get("incarnation") or ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptTableError(
                f"the ingest checkpoint in the last commit is not one of a database table ({error}): {text[:120]!r}"
            ) from error
