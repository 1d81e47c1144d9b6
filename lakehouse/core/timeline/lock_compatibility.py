"""Check, before the lock is acquired, that it excludes all writers of the table.

conditional writes   A lock in files needs compare-and-swap. A store that accepts a condition and ignores it (old
                     S3-compatible stores) would admit two writers. Before such a lock is used with concurrent writers,
                     a test write with a false condition is sent, once per process and table. With a lock kept elsewhere
                     the store needs no conditions: instants are created under the lock only, and every other
                     create-if-absent uses a name that only one writer uses, or content that all writers share.
same lock            Writers that use different locks do not exclude each other. The first of many writers records its
                     lock in `.hoodie/shared_lock.json`; every writer and service with another lock is refused. The
                     file is read once per process and again after a minute. Hudi's writers ignore it.
"""

from __future__ import annotations

import json
import logging

from lakehouse.core.env import Env
from lakehouse.core.storage.local import temporary_name
from lakehouse.core.storage.protocol import UNCONDITIONAL, NotFoundError, RequestRefusedError, Storage
from lakehouse.core.timeline.expiry import lease_record
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UserError
from lakehouse.model.document import parse_json
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

SHARED_LOCK = ".hoodie/shared_lock.json"
#: Storages whose swaps this package implements: by locks of the operating system, in memory, or by renames on HDFS.
_OURS = ("/", "memory://", "hdfs://", "viewfs://")
_PROBE_LEASE_MS = 60_000
_COMPARED_MS = 60_000
#: Status codes of stores without conditional writes: bad request, method not allowed, not implemented.
_UNKNOWN_CONDITION = (400, 405, 501)


def check_lock_compatibility(env: Env, policy: TransactionPolicy, name: str) -> None:
    """Check that the lock called `name` excludes all writers of the table; call before it is acquired.

    Raises UserError if the table's storage does not support the lock, or if other writers of the table use a different
    lock.
    """
    root = env.storage.root
    if policy.many_writers and policy.lock.registered.in_table_storage and not root.startswith(_OURS):
        if root not in env.process_state.conditional_storages:
            _prove_conditions(env, policy.lock.provider)
        env.process_state.conditional_storages.add(root)
    # A lock inside the table is the same lock under every path to the table.
    ours = f"{policy.lock.provider} {name.removeprefix(f'{root}/')}"
    now_ms, key, compared = env.clock.now_ms(), f"{root} {ours}", env.process_state.compared_locks
    if key in compared and 0 <= now_ms - compared[key] < _COMPARED_MS:
        return
    _compare(env.storage, ours, record=policy.many_writers)
    compared[key] = now_ms


def _compare(storage: Storage, ours: str, *, record: bool) -> None:
    theirs = _recorded(storage)
    failure: LakehouseError | None = None
    if theirs is None and record:
        try:
            storage.create(SHARED_LOCK, json.dumps({"lock": ours}).encode())
        except (CommitStateUnknownError, RetryableError) as error:
            # Other writers may write the same bytes, so only the content counts, not which request created it.
            logger.info("%s: %s", storage.root, error)
            failure = error
        theirs = _recorded(storage)
        if theirs is None:
            raise RetryableError(
                f"{storage.root}: {SHARED_LOCK}, which names the lock, was not written: {failure}; try again"
            ) from failure
    if theirs not in (None, ours):
        raise UserError(
            f"{storage.root}: its writers exclude each other by the lock {theirs!r}, but this writer uses {ours!r}, "
            "which excludes none of them. Give all writers the same hoodie.write.lock options; to change the lock, "
            f"stop all writers and services, wait for a minute, and delete {storage.root}/{SHARED_LOCK}",
            option="hoodie.write.lock.provider",
            theirs=theirs,
            ours=ours,
        )


def _recorded(storage: Storage) -> str | None:
    try:
        data = storage.get(SHARED_LOCK)
    except NotFoundError:
        return None
    try:
        return str(parse_json(data)["lock"])
    except (ValueError, KeyError, TypeError):
        return f"unreadable: {data!r}"


def _prove_conditions(env: Env, provider: str) -> None:
    """Raise UserError if the store ignores the condition of a write, or does not support conditions.

    The test object has the name of an unfinished write. If the process is killed here, cleanup deletes it like
    unfinished writes.
    """
    storage = env.storage
    path = f".hoodie/{temporary_name('conditions', env.ids.uuid())}"
    first, second, third = (lease_record(env, f"{path}/{number}", _PROBE_LEASE_MS) for number in range(3))
    try:
        storage.create(path, first, unique=True)
        if storage.create(path, second, unique=True):
            raise _ignored(storage, provider, "If-None-Match: *")
        _, tag = storage.get_tagged(path)
        if tag.startswith(UNCONDITIONAL):
            raise _without_conditions(storage, provider)
        storage.replace_if(path, second, tag)
        if storage.replace_if(path, third, tag) is not None:
            raise _ignored(storage, provider, "If-Match")
    except CommitStateUnknownError as error:
        raise RetryableError(
            f"{storage.root}: the check whether it honours conditional writes failed: {error}"
        ) from error
    except RequestRefusedError as error:
        if error.status in _UNKNOWN_CONDITION:
            raise UserError(
                f"{storage.root} does not support conditional writes, which every table needs: {error}",
                root=storage.root,
            ) from error
        raise
    finally:
        delete_leftovers(storage, [path])


def _without_conditions(storage: Storage, provider: str) -> UserError:
    return UserError(
        f"{storage.root} has no conditional puts, so the lock hoodie.write.lock.provider={provider} would admit "
        "several writers. Keep the lock elsewhere: sqlalchemy, zookeeper or hivemetastore; or write as the only "
        "writer, hoodie.write.concurrency.mode=SINGLE_WRITER. If the store has them, set AWS_CONDITIONAL_PUT=etag.",
        option="hoodie.write.lock.provider",
        root=storage.root,
    )


def _ignored(storage: Storage, provider: str, condition: str) -> UserError:
    return UserError(
        f"{storage.root} ignores the condition {condition} of a write, so the lock "
        f"hoodie.write.lock.provider={provider} would admit several writers. Keep the lock elsewhere: sqlalchemy, "
        "zookeeper or hivemetastore; or write as the only writer, hoodie.write.concurrency.mode=SINGLE_WRITER",
        option="hoodie.write.lock.provider",
        root=storage.root,
    )
