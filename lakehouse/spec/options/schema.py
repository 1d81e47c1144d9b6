"""Options of column drift: the treatment of columns that differ between a batch and the table."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option

NEW_COLUMN, MISSING_COLUMN = "lakehouse.schema.new.column", "lakehouse.schema.missing.column"
TYPE_CHANGE = "lakehouse.schema.type.change"
NULLS, PARTIAL_UPDATE = "hoodie.write.set.null.for.missing.columns", "lakehouse.write.partial.update"
NEW_COLUMNS = ("add", "ignore", "fail")
MISSING_COLUMNS = ("keep", "null", "fail")
TYPE_CHANGES = ("promote", "lossy", "text", "any", "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPolicy:
    """Which differences between a batch and the table are accepted. The commit counts every difference."""

    new_column: str = option(
        NEW_COLUMN,
        "add",
        "Columns that the table lacks: add them, ignore them (the commit counts them), or fail.",
        choices=NEW_COLUMNS,
    )
    missing_column: str = option(
        MISSING_COLUMN,
        "keep",
        "Columns that the batch lacks: stored rows keep their values and new rows get null (keep), all rows get "
        "null, or fail.",
        choices=MISSING_COLUMNS,
    )
    type_change: str = option(
        TYPE_CHANGE,
        "promote",
        "How the type of a column may change. promote: where no value changes (int to long or double, float to double, "
        "wider decimals). lossy: also long to float and double. text: also numbers and dates to string. any: both. "
        "Key, partition and ordering columns change only if their text and order stay the same.",
        choices=TYPE_CHANGES,
    )
    fill_missing_columns: bool = option(
        NULLS,
        False,
        f"The same as {MISSING_COLUMN}=null.",
        aliases=("hoodie.datasource.write.reconcile.schema",),
    )
    partial_update: bool = option(
        PARTIAL_UPDATE,
        False,
        f"The same as {MISSING_COLUMN}=keep, which is the default. Takes precedence over {NULLS}.",
    )

    def __post_init__(self) -> None:
        """Raise UserError for options that contradict each other."""
        for is_set, key, value in (
            (self.fill_missing_columns, NULLS, "null"),
            (self.partial_update, PARTIAL_UPDATE, "keep"),
        ):
            if is_set and self.missing_column not in ("keep", value):
                raise SettingError(
                    f"options {key}=true and {MISSING_COLUMN}={self.missing_column} contradict each other; set one",
                    setting=MISSING_COLUMN,
                    related=(key,),
                )

    @property
    def missing(self) -> str:
        """The treatment of columns that a batch lacks: keep, null or fail."""
        if self.fill_missing_columns and not self.partial_update:
            return "null"
        return self.missing_column

    @property
    def rounds(self) -> bool:
        """Whether type changes may lose digits, such as a change from double to integer."""
        return self.type_change in ("lossy", "any")

    @property
    def makes_text(self) -> bool:
        """Whether numbers and dates may be changed to strings."""
        return self.type_change in ("text", "any")
