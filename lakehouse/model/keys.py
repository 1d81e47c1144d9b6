"""How a table makes record keys and partition paths (DATA-2)."""

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


#: The option, and the property of a table, that says how keys of several columns are made.
KEY_ENCODING = "lakehouse.record_key.encoding"


class KeyEncoding(StrEnum):
    """How the values of several key columns become one text, `f1:v1,f2:v2`, values of `lakehouse.record_key.encoding`.

    CHECKED: as Hudi does; a write refuses rows whose values could read as the key of other values.
    ESCAPED: the values' `%`, `,` and `:` read `%25`, `%2C` and `%3A`, and values that read like a placeholder begin
    with `%5F`; so different values always make different keys. Fixed when the table is created.
    HUDI: as Hudi does, unchecked: rows of different values may have one key, and the later one replaces the other.
    """

    CHECKED = "checked"
    ESCAPED = "escaped"
    HUDI = "hudi"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampFormat:
    """Settings of the timestamp generator, `hoodie.keygen.timebased.*`; patterns are Joda's."""

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
    """Everything that decides the key and the partition path of a row.

    `partition_types` holds SIMPLE or TIMESTAMP per partition field (custom generator; SIMPLE elsewhere, TIMESTAMP for
    the timestamp generator). `field_prefix` tells whether a COMPLEX key of one field is stored as `f:v` (version 9) or
    as the bare value; None where no choice exists. `encoding` is HUDI for readers of a table that does not escape.
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
