"""Load the policies of a catalog. Imports neither core nor pyarrow, so that pages of Airflow can use it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import PolicyRow
from lakehouse.platform.catalog.policies import ServicePolicies, ServicePolicy


def load_policies(session: Session, namespace: str | None) -> ServicePolicies:
    """Return the policies of a namespace and its tables, or of all namespaces (None), with one query."""
    query = select(PolicyRow).order_by(PolicyRow.id)
    if namespace is not None:
        query = query.where(PolicyRow.namespace == namespace)
    return ServicePolicies(
        ServicePolicy(
            namespace=row.namespace,
            name=row.name,
            pattern=row.pattern,
            service=row.service,
            settings=dict(row.settings),
            author=row.author,
        )
        for row in session.scalars(query)
    )
