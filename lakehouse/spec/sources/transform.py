"""The section `transform` of `ingest`: SQL or a function that converts source rows to table rows.

A transform reads views. A source with one stream of records has the view `batch`; the source `table` has one view per
source table. The transform works for every source, because it runs between the read and the write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

from lakehouse.spec.spec_key import SpecKey, key_names
from lakehouse.spec.yaml_section import Section

#: The view of a source with one stream of records.
BATCH = "batch"
TRANSFORM_KEYS = (
    SpecKey(
        name="sql",
        type="SQL query",
        text="Query of Spark over the views; its columns are those of the rows. The view of most sources is `batch`.",
        example="SELECT order_id, sha2(email, 256) AS email FROM batch",
    ),
    SpecKey(
        name="function",
        type="package.module:function",
        text="Function that gets a mapping of view names to DataFrames and returns a DataFrame.",
        example="cleaning.orders:clean",
    ),
)
_QUERY = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*(?:select|with|from|values|table)\b", re.I | re.S)
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec:
    """The transform of an ingestion: either `sql`, a query, or `function`, a name `package.module:function`."""

    sql: str = ""
    function: str = ""

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the section; raise UserError with file and line."""
        section.only(key_names(TRANSFORM_KEYS))
        sql, function = section.text("sql").strip(), section.text("function").strip()
        if bool(sql) == bool(function):
            raise section.error(f"{section.title} needs either 'sql' or 'function'.", "function" if sql else None)
        if sql and not _QUERY.match(sql):
            raise section.error(
                f"sql: {sql[:40]!r} is not a query. A transform only reads: begin it with SELECT or WITH.", "sql"
            )
        if function and not _FUNCTION.fullmatch(function):
            raise section.error(f"function: {function!r} is not a name such as package.module:function.", "function")
        return cls(sql=sql, function=function)

    def to_mapping(self) -> dict[str, Any]:
        """Return the section as in the YAML file."""
        return {"sql": self.sql} if self.sql else {"function": self.function}
