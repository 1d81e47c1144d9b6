"""Features of this package that need a newer Airflow than the oldest supported one.

The plugin logs the features that the installed Airflow lacks, `lakehouse doctor` shows them, and the table in the
documentation is generated from this list.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.metadata import version

from lakehouse_airflow.compat.versions import airflow_version, has, line_of, line_text

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature that not all supported versions of Airflow have.

    Attributes:
        name: Short name.
        since: The oldest line of versions with the feature.
        without: Behaviour on older versions.
        requires: Another distribution and its oldest line of versions with the feature, or None.
    """

    name: str
    since: tuple[int, int]
    without: str
    requires: tuple[str, tuple[int, int]] | None = None

    @property
    def is_present(self) -> bool:
        """Whether the installed Airflow has the feature."""
        return has(self.since) and not self.old_distribution

    @property
    def old_distribution(self) -> str:
        """The required distribution with its installed version if that is too old, otherwise an empty string."""
        if self.requires is None:
            return ""
        distribution, since = self.requires
        installed = version(distribution)
        return f"{distribution} {installed} is older than {line_text(since)}" if line_of(installed) < since else ""

    @property
    def text(self) -> str:
        """The name, with the reason if only another distribution is too old."""
        is_only_reason = has(self.since) and self.old_distribution
        return f"{self.name} ({self.old_distribution})" if is_only_reason else self.name


PAGES = Feature(
    name="pages and REST API",
    since=(3, 1),
    without="No pages and no REST API. Use the command `lakehouse` in Spark's environment.",
    # Airflow 3.1 also allows SQLAlchemy 1.4, for example with the FAB auth manager.
    requires=("sqlalchemy", (2, 0)),
)
DEADLINES = Feature(
    name="deadline alerts",
    since=(3, 1),
    without="DAGs have no deadline. On Airflow 2.11 use `sla`, or `dagrun_timeout` with `on_failure_callback`.",
)
PARTITION_KEYS = Feature(
    name="events with a partition key",
    since=(3, 3),
    without="`partitions_asset` gets one event per publication, with the partition names in its extra `partitions`, "
    "and no DAG can have one run per partition.",
)
ASSET_PAGE = Feature(
    name="table facts on Airflow's asset page",
    since=(3, 2),
    without="The page `Lakehouse` shows them.",
)
FEATURES = (
    PAGES,
    ASSET_PAGE,
    DEADLINES,
    PARTITION_KEYS,
    Feature(
        name="command `airflow lakehouse setup`",
        since=(3, 2),
        without="Run `python -m lakehouse_airflow setup` in Airflow's environment instead.",
    ),
    Feature(
        name="backfills of `services.schedule` are refused",
        since=(3, 2),
        without="Airflow accepts such a backfill. Its runs decide about services like other runs.",
    ),
    Feature(
        name="clearing the deferred task of a stream ends the stream",
        since=(3, 3),
        without="The stream ends at its time. `lakehouse ingest stop` ends it before.",
    ),
    Feature(
        name="author of a triggered run",
        since=(3, 1),
        without="The catalog records the owner of the task as author.",
    ),
    Feature(
        name="command `airflow backfill create`",
        since=(3, 0),
        without="Use `airflow dags backfill --start-date ... --end-date ... <dag>`.",
    ),
    Feature(
        name="assets",
        since=(3, 0),
        without="Assets are datasets. They have no name and no group, and the URI of a table ends with a slash: "
        "`lakehouse://shop.orders/`.",
    ),
)


def missing_features() -> tuple[Feature, ...]:
    """Return the features that the installed Airflow lacks."""
    return tuple(feature for feature in FEATURES if not feature.is_present)


def missing_text() -> str:
    """Return a sentence with the features that the installed Airflow lacks, or an empty string."""
    names = ", ".join(feature.text for feature in missing_features())
    return f"Airflow {airflow_version()} lacks: {names}" if names else ""


def offers(feature: Feature, dag_id: str) -> bool:
    """Return whether the installed Airflow has a feature that a DAG needs. Otherwise log that the DAG is left out."""
    if not feature.is_present:
        needed = line_text(feature.since)
        log.warning("the DAG %s is left out: %s needs Airflow %s or newer", dag_id, feature.name, needed)
    return feature.is_present
