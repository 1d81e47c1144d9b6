"""The contract of a source's settings in the `ingest` section of a table spec.

A source consists of a dataclass of settings in `lakehouse.spec` and a reader in `lakehouse.platform.sources`. The name
`source:` in the section selects both. Secrets are not settings: they stay in connections and environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

from lakehouse.errors import SettingError, UserError
from lakehouse.spec.quantities import parse_size
from lakehouse.spec.secrets import refuse_secrets
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.yaml_section import Section

#: The key that limits the size of a run's input.
SIZE_KEY = "max_bytes"


class SourceSpec(Protocol):
    """The settings of one source, a frozen dataclass.

    Attributes:
        KIND: The value of `source:` that selects this dataclass.
        KEYS: The keys of the `ingest` section that belong to this source.
    """

    KIND: ClassVar[str]
    KEYS: ClassVar[tuple[SpecKey, ...]]

    @property
    def options(self) -> Mapping[str, str]:
        """The options of the source's reader."""

    @property
    def is_by_interval(self) -> bool:
        """Whether a run reads its data interval; otherwise it continues from the checkpoint of the last commit."""

    @property
    def declares_types(self) -> bool:
        """Whether the source itself declares the column types, as Parquet does; otherwise strings are parsed."""

    @property
    def connections(self) -> tuple[str, ...]:
        """The ids of the Airflow connections that the source needs."""

    @property
    def description(self) -> str:
        """Description of the input, such as `json files of landing/orders`."""

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the `ingest` section; raise UserError with file and line."""

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as in the YAML file, without default values."""


def reader_options(section: Section) -> dict[str, str]:
    """Return the `options` of an `ingest` section; raise UserError with file and line if one contains a secret."""
    detail, options = section.section("options", "options"), section.mapping("options")
    for name, value in options.items():
        try:
            refuse_secrets({name: value}, "options")
        except UserError as error:
            raise (detail or section).error(error.message, name) from error
    return options


def size_setting(section: Section) -> int:
    """Return the size `max_bytes` of an `ingest` section, 0 for no limit; raise UserError with file and line."""
    text = section.text(SIZE_KEY, "0")
    try:
        return parse_size(SIZE_KEY, text)
    except SettingError as error:
        raise section.error(f"{error.message}.", SIZE_KEY) from error
