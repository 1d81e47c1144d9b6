"""The settings of the source `table` in the `ingest` section of a table spec: changes of other tables.

A run reads the changes of `tables` since the source commits that the newest commit of this table records. `transform`
or `select` convert the changes to rows. `changes` selects the content of a run's views:

    latest   the newest version of each changed row
    cdc      every change, with the columns `_change_type` and `_commit_time`
    groups   all current rows of the groups (values of `group_by`) in which a row changed
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.yaml_section import Section

LATEST, CDC, GROUPS = CHANGES = ("latest", "cdc", "groups")
APPLY, IGNORE = DELETES = ("apply", "ignore")
#: Columns of the views with `changes: cdc`.
CHANGE_TYPE, COMMIT_TIME = "_change_type", "_commit_time"
TABLE_SOURCE_KEYS = (
    SpecKey(
        name="tables",
        type="mapping of views to locations",
        text="Tables whose changes are read. A run starts when one of them has a commit.",
        example="{raw: lake/raw}",
        required=True,
    ),
    SpecKey(
        name="join",
        type="mapping of views to locations",
        text="Tables that the transform reads as a whole, as they are at the start of the run.",
        example="{drivers: lake/drivers}",
        needs="{transform: {function: etl.trips:clean}}",
    ),
    SpecKey(
        name="changes",
        type="choice",
        text="What the views of `tables` contain: changed rows, every change, or all rows of groups with changes.",
        example="cdc",
        default=LATEST,
        choices=CHANGES,
    ),
    SpecKey(
        name="group_by",
        type="columns",
        text="Columns of the groups that are computed again; the views of `tables` and the rows have these columns.",
        example="[day]",
        needs="changes: groups",
    ),
    SpecKey(
        name="deletes",
        type="choice",
        text="Whether rows without a source row are deleted. `apply` needs change data in `tables`.",
        example=IGNORE,
        default=APPLY,
        choices=DELETES,
    ),
    SpecKey(
        name="by_interval",
        type="boolean",
        text="Whether a run reads the commits that completed in its data interval, instead of those since its commit.",
        example="true",
        default="false",
        needs="deletes: ignore",
    ),
)
_VIEW = re.compile(r"[A-Za-z_]\w{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSourceSpec:
    """Changes of other tables.

    Attributes:
        tables: Locations of the tables whose changes are read, by view.
        join: Locations of the tables that are read as a whole, by view.
        changes: One of `CHANGES`.
        group_by: The columns of the groups, with `changes: groups`.
        deletes: One of `DELETES`; with `changes: cdc` the transform marks deletes itself.
        by_interval: Whether a run reads the commits of its data interval.
    """

    KIND: ClassVar[str] = "table"
    KEYS: ClassVar[tuple[SpecKey, ...]] = TABLE_SOURCE_KEYS

    tables: Mapping[str, str]
    join: Mapping[str, str] = field(default_factory=dict)
    changes: str = LATEST
    group_by: tuple[str, ...] = ()
    deletes: str = APPLY
    by_interval: bool = False

    @property
    def options(self) -> Mapping[str, str]:
        """The source has no reader options."""
        return {}

    @property
    def is_by_interval(self) -> bool:
        """Whether a run reads its data interval; otherwise it continues from the checkpoint of the last commit."""
        return self.by_interval

    @property
    def declares_types(self) -> bool:
        """Tables declare their column types."""
        return True

    @property
    def applies_deletes(self) -> bool:
        """Whether rows of the table are deleted when they no longer have a source row."""
        return self.deletes == APPLY and self.changes != CDC

    @property
    def connections(self) -> tuple[str, ...]:
        """The source needs no connections, because storage is configured by options."""
        return ()

    @property
    def description(self) -> str:
        """Description of the input, such as `changes of lake/raw`."""
        return f"changes of {', '.join(self.tables.values())}"

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the `ingest` section; raise UserError with file and line."""
        spec = cls(
            tables=_locations(section, "tables"),
            join=_locations(section, "join"),
            changes=section.choice("changes", CHANGES, LATEST),
            group_by=section.names("group_by"),
            deletes=section.choice("deletes", DELETES, APPLY),
            by_interval=section.boolean("by_interval", False),
        )
        if not spec.tables:
            raise section.error("ingest needs 'tables': a mapping of views to locations, such as {raw: lake/raw}.")
        twice = next((view for view in spec.join if view.lower() in {name.lower() for name in spec.tables}), None)
        if twice is not None:
            raise section.error(f"join: view {twice!r} is in 'tables' already; choose another name.", "join")
        if (spec.changes == GROUPS) != bool(spec.group_by):
            raise section.error("'group_by' and 'changes: groups' need each other.", "group_by")
        if spec.changes == CDC and section.text("deletes").strip():
            raise section.error(
                "deletes: with 'changes: cdc' the transform marks deletes in the column _hoodie_is_deleted itself; "
                "remove 'deletes'.",
                "deletes",
            )
        own = set(spec.tables.values()) & set(spec.join.values())
        if own and spec.changes == LATEST and spec.applies_deletes:
            raise section.error(
                f"join: {min(own)!r} is in 'tables', too. A row that is computed from several rows of a table needs "
                "'changes: groups' with 'group_by', because deletes of single rows must compute it again.",
                "join",
            )
        return spec

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as in the YAML file, without default values."""
        mapping: dict[str, Any] = {"tables": dict(self.tables)}
        if self.join:
            mapping["join"] = dict(self.join)
        if self.changes != LATEST:
            mapping["changes"] = self.changes
        if self.group_by:
            mapping["group_by"] = list(self.group_by)
        if self.deletes != APPLY:
            mapping["deletes"] = self.deletes
        if self.by_interval:
            mapping["by_interval"] = True
        return mapping


def _locations(section: Section, name: str) -> dict[str, str]:
    locations = section.mapping(name)
    for view, location in locations.items():
        if not _VIEW.fullmatch(view):
            raise section.error(
                f"{name}: {view!r} is not the name of a view: letters, digits and '_', not starting with a digit.", name
            )
        if not location.strip():
            raise section.error(f"{name}: view {view!r} has no location.", name)
    if len({view.lower() for view in locations}) < len(locations):
        raise section.error(f"{name}: two views differ only in case, which SQL does not distinguish.", name)
    return {view: location.strip() for view, location in locations.items()}
