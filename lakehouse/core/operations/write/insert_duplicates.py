"""The policies of an insert for rows whose key exists already: keep them, drop them, or fail.

A row is a duplicate if another row of the batch, or a stored row, has its key where the table's index requires unique
keys: in the same partition, or in the table with a global index.

    none   insert all rows, as Hudi does by default
    drop   insert each key once: combine the rows of the batch by the merge rule, and drop rows whose key is stored
    fail   refuse the whole batch

The check is repeated by each attempt of a write. A commit that inserted one of the keys in the meantime is a conflict.
Hudi applies its policy to stored rows only; here it covers the rows of a batch, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from lakehouse.core.files.keys.stored_duplicates import StoredKeys, drop_stored, stored_keys_of
from lakehouse.core.index.write_tasks import StagedRun, TagTask
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.placement.protocol import PreparedWrite
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.errors import UserError
from lakehouse.model.commit import Operation
from lakehouse.model.display import count_text
from lakehouse.spec.options.write import DUPLICATES, InsertDuplicates, WritePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueRows:
    """The staged runs that are inserted, and the number of dropped duplicates."""

    runs: Sequence[StagedRun]
    dropped: int = 0


def insert_duplicates(policy: WritePolicy, operation: Operation) -> InsertDuplicates:
    """Return the policy of a write; raise UserError if the operation cannot apply it."""
    duplicates = policy.insert_duplicates
    if duplicates is InsertDuplicates.NONE or operation is not Operation.BULK_INSERT:
        return duplicates if operation is Operation.INSERT else InsertDuplicates.NONE
    raise UserError(
        f"{DUPLICATES}={duplicates}: bulk_insert looks up no keys; use insert, or set the option to none for this call",
        option=DUPLICATES,
    )


def counted(rows: list[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, and add their rows to the first number of `rows`."""
    for batch in batches:
        rows[0] += batch.num_rows
        yield batch


def unique_rows(write: PreparedWrite, staged: Sequence[StagedRun], incoming: int) -> UniqueRows:
    """Apply the policy to the staged rows of an insert; `incoming` is the number of rows before they were combined.

    Raises:
        UserError: The policy is `fail`, and a key exists already. The message has an example.
    """
    policy = insert_duplicates(write.policies.write, write.request.operation)
    repeated = incoming - sum(run.rows for run in staged)
    if write.context.incoming.drops_repeated:
        return UniqueRows(runs=staged, dropped=repeated)
    if policy is InsertDuplicates.NONE or write.table.config.keys.generates_keys:
        return UniqueRows(runs=staged)
    if policy is InsertDuplicates.FAIL and repeated:
        raise _refusal(write, f"the batch has {count_text(repeated, 'row')} too many for its keys")
    stored = _stored_keys(write, staged)
    if not stored:
        return UniqueRows(runs=staged, dropped=repeated)
    if policy is InsertDuplicates.FAIL:
        where = f" in partition {stored[0].partition!r}" if stored[0].partition else ""
        count = sum(file.rows for file in stored)
        raise _refusal(
            write, f"the table contains {count_text(count, 'key')} of the batch, such as {stored[0].example!r}{where}"
        )
    tasks = partial(drop_stored, write.context, stored)
    results = write.engine.run(tasks, list(staged), light=True)
    runs = [result.run for result in results if result.run.rows]
    return UniqueRows(runs=runs, dropped=repeated + sum(result.dropped for result in results))


def _refusal(write: PreparedWrite, problem: str) -> UserError:
    return UserError(
        f"{write.table.env.storage.root}: {problem}, and {DUPLICATES}=fail; nothing was written. Use upsert to update "
        f"these rows, or {DUPLICATES}=drop to insert only new keys",
        option=DUPLICATES,
    )


def _stored_keys(write: PreparedWrite, staged: Sequence[StagedRun]) -> tuple[StoredKeys, ...]:
    """Return the keys of the staged rows that the newest slices contain."""
    context, entries = write.context, [entry for run in staged for entry in run.entries]
    slices = load_slices(write.table, context.layout.searched(entry.partition for entry in entries))
    read = slice_context(write.table, context.schema, budget=context.policy.memory_budget_bytes)
    tasks = []
    for file_slice in slices:
        matching = context.layout.entries_for_group(entries, file_slice.partition, file_slice.file_id)
        if matching:
            tasks.append(TagTask(bases=(), entries=matching, slices=(file_slice,)))
    if not tasks:
        return ()
    # The tasks of this process share one memory budget.
    share = max(context.policy.memory_budget_bytes // max(min(write.engine.parallelism, len(tasks)), 1), 1)
    context = replace(context, policy=replace(context.policy, memory_budget_bytes=share))
    read = replace(read, budget_bytes=share)
    files = write.engine.run(partial(stored_keys_of, context, read), tasks, light=True)
    return tuple(file for file in files if file is not None)
