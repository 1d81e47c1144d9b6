"""Collect the facts about a table and its writers, and run the checks of `lakehouse doctor table`; only reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lakehouse.core.metadata.key_changes import instant_ms
from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.core.timeline.lock_compatibility import SHARED_LOCK
from lakehouse.model.document import parse_json
from lakehouse.platform.doctor.table_checks import TABLE_CHECKS, TableFacts
from lakehouse.platform.doctor.table_writers import hudi_writer, our_writer
from lakehouse.platform.fleet_scan.examine import bucket_numbers
from lakehouse.platform.services.support import table_support
from lakehouse.spec.contracts.table_doctor import Risk, TableDoctorReport
from lakehouse.spec.options.policies import Policies

#: Newest writes whose file names show the buckets.
_WRITES = 5


def examine_table(
    table: Table, writers: Mapping[str, Mapping[str, str]], *, services: Collection[str] | None = None, name: str = ""
) -> TableDoctorReport:
    """Compare the settings of lakehouse, of a table, and of Hudi's jobs.

    Args:
        table: The table, opened with the options of lakehouse's writers.
        writers: The properties of each job of Hudi, by its name.
        services: The services that lakehouse runs on the table; None if no catalog contains it.
        name: The table's name in a catalog.

    Raises:
        UserError: A property of a job is not a number where one is needed.
    """
    loaded, policies = table.services_as_loaded.table, table.services_as_loaded.policies
    facts = _facts(loaded, policies, writers, services, name)
    findings = [finding for check in TABLE_CHECKS.values() for finding in check(facts)]
    # Losses come first; the order of the checks stays within one risk.
    findings.sort(key=lambda finding: finding.risk is not Risk.UNSAFE)
    return TableDoctorReport(
        table=name or loaded.config.name,
        location=facts.root,
        table_version=loaded.config.version,
        writers=tuple(writer.name for writer in (facts.ours, *facts.hudis)),
        checks=tuple(TABLE_CHECKS),
        findings=tuple(findings),
    )


def _facts(
    table: LoadedTable,
    policies: Policies,
    writers: Mapping[str, Mapping[str, str]],
    services: Collection[str] | None,
    name: str,
) -> TableFacts:
    config, root = table.config, table.env.storage.root
    ours = table_support(table, policies).services if services is None else services
    pending = {instant.requested for instant in pending_writes(table)}
    return TableFacts(
        config=config,
        root=root,
        name=name or root,
        ours=our_writer(policies, config, root, ours),
        hudis=tuple(hudi_writer(name, options, config, root) for name, options in writers.items()),
        is_registered=services is not None,
        failed=tuple(sorted(pending - active_writes(table.env, policies.transaction))) if pending else (),
        ahead_s=_ahead_s(table),
        recorded_lock=_recorded_lock(table),
        buckets=bucket_numbers(table, writes=_WRITES),
    )


def _ahead_s(table: LoadedTable) -> float:
    """Return the seconds by which the newest instant is ahead of this host's clock; 0 if it is not."""
    newest = table.timeline.latest_time()
    ahead_ms = instant_ms(newest, table.config.timezone) - table.env.clock.now_ms() if newest else 0
    return max(0.0, ahead_ms / 1000)


def _recorded_lock(table: LoadedTable) -> str | None:
    try:
        document = parse_json(table.env.storage.get(SHARED_LOCK))
    except (NotFoundError, ValueError):
        return None
    return str(document.get("lock", "")) or None if isinstance(document, dict) else None
