"""Propose policies and a catalog name for a table that another program wrote.

Registration alone must not change the behaviour of a table. So a service that another program runs stays disabled until
its owner turns it off there, and nothing is deleted earlier than today.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.clean import last_clean
from lakehouse.errors import LakehouseError
from lakehouse.model.commit import REWRITES
from lakehouse.model.instant import Action, Instant
from lakehouse.model.timeline_service import TimelineService, timeline_service
from lakehouse.platform.catalog.identities import DEFAULT_NAMESPACE
from lakehouse.spec.contracts.fleet_scan import ProposedPolicy
from lakehouse.spec.options.archive import ArchivePolicy
from lakehouse.spec.options.clean import CleanPolicy

#: Commits above the minimum after which an archive is due.
_ARCHIVE_INTERVAL = 10
#: Number of newest replacecommits that are read to find clusterings.
_REPLACEMENTS = 10
_INVALID = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 200


def proposed_policies(table: LoadedTable, services: Sequence[str]) -> tuple[ProposedPolicy, ...]:
    """Return policies for the supported services of a loaded table.

    Reads the metadata of the last clean and of a few replacecommits, and lists the archive's folder.
    """
    proposals = [*_foreign_services(table), *_foreign_archive(table), *_retention(table)]
    merged: dict[str, ProposedPolicy] = {}
    for proposal in proposals:
        if proposal.service not in services:
            continue
        earlier = merged.get(proposal.service)
        merged[proposal.service] = proposal if earlier is None else _both(earlier, proposal)
    return tuple(merged.values())


def proposed_names(places: Mapping[str, str], root: str, namespace: str, taken: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog name for each table; `places` maps locations to the names in their properties.

    Without `namespace`, the namespace is the folder above the table. Tables with one name get a longer name, made of
    their path. `taken` maps the names in the catalog to their locations; a location there keeps its name.
    """
    by_location = {location.rstrip("/"): name for name, location in taken.items()}
    names: dict[str, str] = {}
    used = dict(taken)
    for location in sorted(places):
        present = by_location.get(location.rstrip("/"))
        if present is not None:
            names[location] = present
            continue
        for name in _candidates(location, places[location], root, namespace):
            if name not in used:
                used[name], names[location] = location, name
                break
    return names


def _both(first: ProposedPolicy, second: ProposedPolicy) -> ProposedPolicy:
    settings = {**first.settings, **second.settings}
    return ProposedPolicy(service=first.service, settings=settings, reason=f"{first.reason}; {second.reason}")


def _foreign_services(table: LoadedTable) -> Iterator[ProposedPolicy]:
    """Propose to disable the services that the program of today runs on the table."""
    running: dict[str, None] = {}
    for instant in table.timeline:
        service = _service_of(table, instant)
        if service is not None:
            running[service] = None
    replacements = list(table.timeline.where(action=Action.REPLACECOMMIT))[-_REPLACEMENTS:]
    if any(instant.is_completed and _is_clustering(table, instant) for instant in replacements):
        running["clustering"] = None
    for service in running:
        yield ProposedPolicy(
            service=service,
            settings={"enabled": False},
            # Without the time of the last run, so that tables with the same reason are shown together.
            reason=f"the timeline shows runs of {service}; turn it off in the program that runs it, then enable it "
            "here",
        )


def _foreign_archive(table: LoadedTable) -> Iterator[ProposedPolicy]:
    """Propose to disable the archive if there is an archived timeline; an archive leaves no instant."""
    folder = table.store.archived_timeline.directory
    if table.env.storage.list_dir(folder)[0]:
        yield ProposedPolicy(
            service="archive",
            settings={"enabled": False},
            reason=f"another program archives the timeline to {folder}; turn it off there "
            "(hoodie.archive.automatic=false), then enable it here",
        )


def _service_of(table: LoadedTable, instant: Instant) -> str | None:
    if instant.action is Action.CLEAN:
        return "clean"
    if instant.action is Action.LOGCOMPACTION:
        return "logcompaction"
    service = timeline_service(instant.action, merge_on_read=table.config.is_merge_on_read)
    return {TimelineService.COMPACTION: "compaction", TimelineService.CLUSTERING: "clustering"}.get(service)


def _is_clustering(table: LoadedTable, instant: Instant) -> bool:
    try:
        return table.store.summary(instant).operation in REWRITES
    except LakehouseError:
        # The checks of the table report a damaged instant; it is no evidence of a service.
        return False


def _retention(table: LoadedTable) -> Iterator[ProposedPolicy]:
    """Propose to keep as many commits readable, and on the timeline, as today."""
    writes = len(table.timeline.writes())
    clean = last_clean(table)
    retained = 0
    if clean is not None and clean.earliest:
        retained = sum(instant.requested >= clean.earliest for instant in table.timeline.writes())
    default = CleanPolicy().commits_retained
    if clean is None and writes > default:
        yield ProposedPolicy(
            service="clean",
            settings={"enabled": False},
            reason=f"no clean is on the timeline with {writes} writes; enable it when earlier versions may be deleted",
        )
    elif retained > default:
        reason = f"the last clean kept the newest {retained} commits readable"
        yield ProposedPolicy(service="clean", settings={"commits_retained": retained}, reason=reason)
    least = max(writes, retained + 1)
    if least > ArchivePolicy().max_commits:
        settings: dict[str, Any] = {"min_commits": least, "max_commits": least + _ARCHIVE_INTERVAL}
        yield ProposedPolicy(service="archive", settings=settings, reason=f"the timeline has {writes} writes today")


def _candidates(location: str, stored: str, root: str, namespace: str) -> Iterator[str]:
    """Yield names of a table, the shortest first; the last one is unique for the location."""
    path = location.rstrip("/").removeprefix(root.rstrip("/")).strip("/")
    folders = [part for part in path.split("/") if part] or [location.rstrip("/").rpartition("/")[2]]
    above = folders[-2] if len(folders) > 1 else root.rstrip("/").rpartition("/")[2] if path else ""
    space = _plain(namespace or above) or DEFAULT_NAMESPACE
    short = _plain(stored.rpartition(".")[2]) or _plain(folders[-1]) or "table"
    yield f"{space}.{short}"
    yield f"{space}.{_plain(folders[-1]) or short}"
    joined = _plain("_".join(folders)) or short
    yield f"{space}.{joined}"
    number = 2
    while True:
        yield f"{space}.{joined[: _LONGEST_NAME - 6]}_{number}"
        number += 1


def _plain(name: str) -> str:
    """Return a name with the characters that a catalog accepts."""
    return _INVALID.sub("_", name).strip("_-")[:_LONGEST_NAME]
