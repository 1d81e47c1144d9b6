"""Effective policies of a table: each setting with its origin, and the policies without effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lakehouse.spec.contracts.document import Document


class PolicyOrigin(StrEnum):
    """The place that declares a setting. A later member overrides an earlier one."""

    #: The default of the option.
    DEFAULT = "default"
    #: The properties file of the table.
    PROPERTIES = "properties"
    #: `options:` of the table's spec.
    OPTIONS = "options"
    #: The policy of the namespace.
    NAMESPACE = "namespace"
    #: `services:` of the table's spec.
    SPEC = "spec"
    #: The policy of the table.
    TABLE = "table"
    #: The policy for partitions that match a pattern.
    PATTERN = "pattern"


class DeadPolicyReason(StrEnum):
    """Why a declared setting has no effect."""

    #: The pattern matches no partition.
    NO_PARTITION = "no_partition"
    #: More specific or later policies override the setting everywhere.
    OVERRIDDEN = "overridden"
    #: The service does not apply to tables of this kind.
    NOT_APPLICABLE = "not_applicable"
    #: The service cannot honour the setting for the partitions of a pattern.
    NOT_HONOURED = "not_honoured"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySetting:
    """One effective setting of a service.

    Attributes:
        setting: Name of the setting, such as max_delta_commits or enabled.
        value: The value as a string.
        origin: Where the value is declared.
        scope: The namespace, the table, or the file of the spec that declares it; empty for a default.
        pattern: The pattern of the partitions to which it applies; empty for all.
        key: The option key of the setting; None for a setting of the scheduler.
        author: The user that set it in the catalog; empty if unknown.
    """

    setting: str
    value: str
    origin: PolicyOrigin
    scope: str = ""
    pattern: str = ""
    key: str | None = None
    author: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePolicy:
    """The effective settings of a service, for a table or for one of its partitions.

    `options` are the declared values by option key. `settings` contains the defaults as well. Without a partition it
    contains the settings of patterns in addition to the table's settings.
    """

    service: str
    enabled: bool
    priority: float
    deadline_s: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[PolicySetting, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadPolicy:
    """A declared setting that has no effect; `text` contains the reason and a solution."""

    service: str
    setting: str
    origin: PolicyOrigin
    reason: DeadPolicyReason
    text: str
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePolicies(Document):
    """Result of `lakehouse policy show`. `partition` is None for the settings of the whole table.

    `dead` are declared settings without effect. Patterns are compared with the partitions only if `partitions_known`.
    """

    table: str
    policies: tuple[ServicePolicy, ...] = ()
    partition: str | None = None
    dead: tuple[DeadPolicy, ...] = ()
    partitions_known: bool = False
