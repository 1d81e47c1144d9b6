"""Enter a table in a catalog: its row, the first version of its spec, and its policies, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from lakehouse.model.table_identity import TableIdentity
from lakehouse.platform.catalog.identities import record_identity
from lakehouse.platform.catalog.models import PolicyRow, SpecRow, TableRow
from lakehouse.spec.secrets import refuse_in_policy, refuse_secrets
from lakehouse.spec.table.service_settings import setting_options
from lakehouse.spec.table.table_spec import TableSpec

_LONGEST_AUTHOR, _LONGEST_SOURCE = 512, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """A table to register: namespace and name, location, spec, author, and identity if the table exists."""

    identifier: tuple[str, str]
    location: str
    spec: TableSpec
    author: str
    identity: TableIdentity | None


def add_entry(session: Session, entry: NewEntry, policies: Mapping[str, Mapping[str, Any]], now_ms: int) -> None:
    """Add the rows of a table; `policies` are settings of the table by service.

    Raises UserError for a setting that is unknown, or that a policy may not declare.
    """
    namespace, name = entry.identifier
    row = TableRow(namespace=namespace, name=name, location=entry.location, spec_version=1, created_ms=now_ms)
    if entry.identity is not None:
        record_identity(row, entry.identity)
    session.add(row)
    session.flush()
    session.add(spec_row(row, entry.spec, entry.author, now_ms))
    for service, settings in policies.items():
        refuse_in_policy(setting_options(service, settings))
        policy = PolicyRow(namespace=namespace, name=name, pattern="", service=service, settings=dict(settings))
        policy.version, policy.updated_ms, policy.author = 1, now_ms, entry.author[:_LONGEST_AUTHOR]
        session.add(policy)


def spec_row(row: TableRow, spec: TableSpec, author: str, now_ms: int) -> SpecRow:
    """Return the current version of a table's spec as a row; raise UserError if it contains a secret."""
    return SpecRow(
        table_id=row.id,
        version=row.spec_version,
        document=document_of(spec),
        author=author[:_LONGEST_AUTHOR],
        source=spec.source[:_LONGEST_SOURCE],
        created_ms=now_ms,
    )


def document_of(spec: TableSpec) -> dict[str, Any]:
    """Return the document that the catalog stores for a spec, with `${VAR}` unresolved.

    Raises UserError if the spec contains a secret. Specs in files are checked when they are read.
    """
    for declared in (spec, *spec.ingestions):
        of_source = {} if declared.ingest is None else declared.ingest.source.options
        refuse_secrets({**declared.options, **of_source}, f"the spec of {spec.table}")
    return spec.to_mapping()
