"""The settings of the source `custom` in the `ingest` section of a table spec: a class outside of this package.

The class implements `lakehouse.platform.sources.source.Source`. The deployment must allow the class in
LAKEHOUSE_ALLOWED_FUNCTIONS. Jobs load it, but never Airflow's DAG processor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from lakehouse.spec.sources.source import reader_options
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.yaml_section import Section

_CLASS = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
CUSTOM_KEYS = (
    SpecKey(
        name="class",
        type="package.module:Class",
        text="Class that implements `Source`; LAKEHOUSE_ALLOWED_FUNCTIONS of the deployment must allow it.",
        example='"shop.sources:Invoices"',
        required=True,
    ),
    SpecKey(
        name="options",
        type="mapping",
        text="Settings for the class; a value that looks like a secret is refused.",
        example="{folder: invoices}",
    ),
    SpecKey(
        name="connections",
        type="list",
        text="Airflow connections that the class needs; the job gets each one as AIRFLOW_CONN_<ID>.",
        example="[billing_api]",
    ),
    SpecKey(
        name="by_interval",
        type="boolean",
        text="Whether a run reads its data interval instead of the records after the checkpoint.",
        example="true",
        default="false",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSourceSpec:
    """A source whose class is outside of this package.

    Attributes:
        class_name: The class, as `package.module:Class`.
        options: The settings of the class.
        connections: The ids of the Airflow connections that it needs.
        by_interval: Whether a run reads its data interval.
    """

    KIND: ClassVar[str] = "custom"
    KEYS: ClassVar[tuple[SpecKey, ...]] = CUSTOM_KEYS

    class_name: str
    options: Mapping[str, str] = field(default_factory=dict)
    connections: tuple[str, ...] = ()
    by_interval: bool = False

    @property
    def is_by_interval(self) -> bool:
        """Whether a run reads its data interval."""
        return self.by_interval

    @property
    def declares_types(self) -> bool:
        """True: the class returns rows with types."""
        return True

    @property
    def description(self) -> str:
        """Description of the input: records of the class."""
        return f"records of {self.class_name}"

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the `ingest` section; raise UserError with file and line."""
        name = section.required("class")
        if not _CLASS.fullmatch(name):
            raise section.error(f"class: {name!r} is not of the form package.module:Class.", "class")
        return cls(
            class_name=name,
            options=reader_options(section),
            connections=section.names("connections"),
            by_interval=section.boolean("by_interval", False),
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as in the YAML file, without default values."""
        mapping: dict[str, Any] = {"class": self.class_name}
        if self.options:
            mapping["options"] = dict(self.options)
        if self.connections:
            mapping["connections"] = list(self.connections)
        if self.by_interval:
            mapping["by_interval"] = True
        return mapping
