"""Sentences for the effects of an action, derived from the document of its dry run. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.model.display import count_text, size_text, some
from lakehouse.spec.actions import Effects
from lakehouse.spec.decision_text import work_text
from lakehouse.spec.table.services import VERSION_CHANGES


def effects_of(action: str, document: Mapping[str, Any], parameters: Mapping[str, Any]) -> Effects:
    """Describe the effects of an action from the document of its dry run."""
    if action in VERSION_CHANGES and not document.get("steps"):
        return Effects.none(next(iter(document.get("warnings") or ()), "the table has this version"))
    if action in VERSION_CHANGES and document.get("blockers"):
        return Effects(sentences=_version_change(document, parameters), nothing_to_do=True)
    if document.get("reason") and not document.get("target") and not document.get("savepoint"):
        return Effects.none(str(document["reason"]))
    effects = {
        "request_service": _request,
        "rollback": _rollback,
        "rollback_failed": _failed_writes,
        "savepoint": _savepoint,
        "restore": _restore,
        "publish": _publish,
        "withdraw": _withdraw,
        **dict.fromkeys(VERSION_CHANGES, _version_change),
    }
    return Effects(sentences=effects[action](document, parameters))


def _request(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, ...]:
    service, predicted = parameters["service"], document.get("predicted") or {}
    effects = [f"{_when(document.get('dag') or {})} runs {service}, due or not."]
    if document.get("decision"):
        effects.append(f"The newest decision is: {document['decision']}.")
    work = work_text(service, predicted)
    if work:
        effects.append(f"A run {work}.")
    if parameters.get("partitions"):
        effects.append(f"Only these partitions: {some(parameters['partitions'])}.")
    return tuple(effects)


def _when(dag: Mapping[str, Any]) -> str:
    """Return the subject of the first sentence: the decision that will process a request."""
    name = dag.get("dag_id", "")
    if dag.get("is_missing"):
        return f"This Airflow has no DAG {name}, so nothing is decided now. Once it is deployed, its first decision"
    if dag.get("is_paused"):
        return f"The DAG {name} is paused, so nothing is decided now. Once it is started, its first decision"
    return "The next decision of the scheduler"


def _rollback(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, ...]:
    files = document.get("files") or ()
    return (
        f"The {document.get('action')} {document.get('target')} is rolled back.",
        f"{count_text(len(files), 'file')} would be deleted{f', such as {files[0]}' if files else ''}.",
        "Readers can no longer read the rows of this write.",
    )


def _failed_writes(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, ...]:
    gone, active, refused = (document.get(name) or () for name in ("rolled_back", "active", "refused"))
    effects = [f"{count_text(len(gone), 'failed write')} would be rolled back{f': {some(gone)}' if gone else ''}."]
    if active:
        effects.append(f"{count_text(len(active), 'write')} with a valid heartbeat stay: {some(active)}.")
    if refused:
        effects.append(f"{count_text(len(refused), 'write')} cannot be rolled back: {some(refused)}.")
    return tuple(effects)


def _savepoint(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, ...]:
    savepoint = document.get("savepoint") or {}
    files = count_text(savepoint.get("files", 0), "file")
    partitions = count_text(savepoint.get("partitions", 0), "partition")
    return (f"Clean and rollback keep commit {savepoint.get('instant')}: {files} in {partitions}.",)


def _restore(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, ...]:
    reverted = document.get("reverted") or ()
    files = sum(int(write.get("files", 0)) for write in reverted)
    writes = some([f"{write['action']} {write['instant']}" for write in reverted], 5)
    return (
        f"The table goes back to {document.get('target')}.",
        f"{count_text(len(reverted), 'write')} would be rolled back{f': {writes}' if reverted else ''}.",
        f"{count_text(files, 'file')} would be deleted; their rows cannot be read afterwards.",
    )


def _version_change(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, ...]:
    lost = document.get("readers_lost") or ()
    return (
        *(f"This prevents the change: {blocker}." for blocker in document.get("blockers") or ()),
        f"The table changes from version {document.get('source')} to {document.get('target')}.",
        *(f"Step {number}: {step}." for number, step in enumerate(document["steps"], start=1)),
        *((f"These engines cannot read the table afterwards: {', '.join(lost)}.",) if lost else ()),
        *(f"Note: {warning}." for warning in document.get("warnings") or ()),
    )


def _publish(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, ...]:
    ready, waiting = document.get("publish") or (), document.get("waiting") or ()
    shown = [f"{part['partition']} as version {part['instant']}" for part in ready]
    effects = [f"Readers of {document.get('target')} will see {some(shown)}."] if shown else []
    for part in waiting:
        effects.append(f"{part['partition']} waits now: {part['reason']}. The action signals that it is ready.")
    return tuple(effects) or (f"{some(parameters['partitions'])} would be published in the current state.",)


def _withdraw(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, ...]:
    rows = document.get("partitions") or ()
    return tuple(
        f"Readers of {document.get('target')} no longer see {row['partition']}, "
        f"{count_text(row.get('files', 0), 'file')} of {size_text(row.get('size_bytes', 0))}; it is now {row['state']}."
        for row in rows
    )
