"""Settings by which record keys and partition paths are generated (DATA-2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakehouse.model.texts import text_list


class KeyGeneratorType(StrEnum):
    """Values of `hoodie.table.keygenerator.type` that this package writes."""

    SIMPLE = "SIMPLE"
    COMPLEX = "COMPLEX"
    TIMESTAMP = "TIMESTAMP"
    CUSTOM = "CUSTOM"
    NON_PARTITION = "NON_PARTITION"


#: The option and table property for encoding keys of several columns.
KEY_ENCODING = "lakehouse.record_key.encoding"


#: The timestamp type of a spec that declares none: the type of the column decides.
BY_COLUMN = ""


class KeyEncoding(StrEnum):
    """The encoding of several key columns as one string `f1:v1,f2:v2`; values of `lakehouse.record_key.encoding`.

    CHECKED: Hudi's encoding; a write refuses rows whose key could also be the key of other values.
    ESCAPED: `%`, `,` and `:` in values are written as `%25`, `%2C` and `%3A`, and values that equal a placeholder begin
    with `%5F`. Different values always have different keys. Fixed when the table is created.
    HUDI: Hudi's encoding without the check: different values may have the same key, and the later row replaces the
    earlier one.
    """

    CHECKED = "checked"
    ESCAPED = "escaped"
    HUDI = "hudi"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampFormat:
    """Settings of the timestamp key generator, `hoodie.keygen.timebased.*`; patterns have Joda's syntax."""

    type: str = "EPOCHMILLISECONDS"
    scalar_unit: str = "seconds"
    input_formats: tuple[str, ...] = ()
    input_timezone: str = ""
    output_format: str = "yyyy-MM-dd"
    output_timezone: str = "UTC"

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_formats", text_list(self.input_formats, "input_formats", ordered=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyConfig:
    """The settings that determine the record key and the partition path of a row.

    `partition_types` is SIMPLE or TIMESTAMP for each partition field: any of them with the custom generator, TIMESTAMP
    with the timestamp generator, SIMPLE with all others. `field_prefix` is whether a COMPLEX key of one field is stored
    as `f:v` (version 9) or as the value alone, and None if the key is not COMPLEX. `encoding` is HUDI for readers of a
    table that does not escape.
    """

    generator: KeyGeneratorType
    record_key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...] = ()
    partition_types: tuple[str, ...] = ()
    hive_style: bool = False
    url_encode: bool = False
    timestamp: TimestampFormat | None = None
    field_prefix: bool | None = None
    consistent_timestamps: bool = False
    encoding: KeyEncoding = KeyEncoding.HUDI

    @property
    def generates_keys(self) -> bool:
        """Whether the table has no record key columns, so that each inserted row gets a generated key."""
        return not self.record_key_fields
