"""Checks of the catalog's database: connection, schema, clock. They change nothing."""

from __future__ import annotations

from lakehouse.core.timeline.locks.protocol import skew_of
from lakehouse.platform.catalog.connect import database_state
from lakehouse.platform.doctor.deployment import Deployment
from lakehouse.platform.doctor.finding import Finding, failed, ok, skipped, warning
from lakehouse.spec.options.lock import LockPolicy

_NONE = "no catalog is configured: LAKEHOUSE_CATALOG and LAKEHOUSE_HOME are not set"
_NEW = "the database of the embedded catalog does not exist"
_CREATE = (
    "If the tables have another catalog, set LAKEHOUSE_CATALOG to its URL, or create the connection lakehouse_catalog "
    "in Airflow. Otherwise `lakehouse catalog upgrade` creates this one."
)


def check_catalog(deployment: Deployment) -> Finding:
    """Check that the database answers."""
    if deployment.catalog_url is None:
        return warning(f"{_NONE}; table services need one")
    state = database_state(deployment.catalog_url)
    if state is None:
        return warning(f"{_NEW}: {deployment.catalog_url}", _CREATE)
    return ok(f"{state.where} answers")


def check_migrations(deployment: Deployment) -> Finding:
    """Check the revision of the schema."""
    if deployment.catalog_url is None:
        return skipped(_NONE)
    state = database_state(deployment.catalog_url)
    if state is None:
        return skipped(_NEW)
    if state.revision == state.newest:
        return ok(f"schema revision {state.newest}")
    revisions = f"{state.where} has schema revision {state.revision or 'none'}, this lakehouse needs {state.newest}"
    if state.where.startswith("sqlite"):
        return ok(f"{revisions}; the next command upgrades it")
    return failed(revisions)


def check_database_clock(deployment: Deployment) -> Finding:
    """Compare the clock of the database with the clock of this host."""
    if deployment.catalog_url is None:
        return skipped(_NONE)
    before_ms = deployment.clock.now_ms()
    state = database_state(deployment.catalog_url)
    if state is None or state.now_ms is None:
        return skipped("SQLite uses the clock of this host")
    return judge_skew(skew_of(state.now_ms, before_ms, deployment.clock.now_ms()), state.where)


def judge_skew(skew_ms: int, where: str) -> Finding:
    """Return the finding about a clock that this host is `skew_ms` ahead of; leases limit it (see `check_clock`)."""
    # The default lease of a lock is the minimum, and is renewed after a third of its duration.
    allowed_ms = LockPolicy().lease_ms // 3
    direction = "ahead of" if skew_ms > 0 else "behind"
    text = f"this host's clock is {abs(skew_ms) / 1000:.1f} s {direction} that of {where}"
    if abs(skew_ms) > allowed_ms:
        return failed(f"{text}; leases allow {allowed_ms / 1000:.0f} s")
    return ok(text if skew_ms else f"no difference to the clock of {where}")
