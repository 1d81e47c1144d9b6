"""Plan resizes of a simple bucket index: the bucket count of a partition changes, or rows are sorted (MDT-12.6).

    8 -> 16    bucket b becomes b and b + 8        one group per old bucket
    16 -> 8    b and b + 8 become b                one group per new bucket
    n -> m     buckets with equal remainders by gcd(n, m) form a group

The bucket count applies to the whole partition, so a resize rewrites all file groups of the partition together.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.core.index.hash.bucket import bucket_file_id, bucket_ids, bucket_of
from lakehouse.core.planning.clustering import Unsorted, metrics_of
from lakehouse.core.state.data_files import members
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.errors import CorruptTableError
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup, ClusteringPlan
from lakehouse.model.document import parse_json
from lakehouse.model.files import FileSlice
from lakehouse.spec.table.bucket_rules import BucketRules

_CHANGES = "lakehouse.clustering.buckets"
_FILE_IDS, _COUNT = "lakehouse.clustering.bucket.ids", "lakehouse.clustering.bucket.count"
_PLAIN = re.compile(r"[A-Za-z0-9_/=\-]|[^\x00-\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedChange:
    """The change of one partition: the bucket counts before and after, and the uuid for the new file groups.

    `sorted_only` lists the buckets to sort if the count does not change; it is empty if the count changes.
    """

    before: int
    after: int
    uuid: str
    sorted_only: tuple[int, ...] = ()

    @property
    def is_resize(self) -> bool:
        """Whether the number of buckets changes."""
        return self.before != self.after

    def child(self, bucket: int) -> str | None:
        """Return the new file id for `bucket`, a number modulo a multiple of both counts; None if the bucket stays."""
        number = bucket % self.after
        return bucket_file_id(number, self.uuid) if self.is_resize or number in self.sorted_only else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedChildren:
    """The new buckets of one group in a plan; `count` is the partition's number of buckets afterwards."""

    file_ids: tuple[str, ...]
    count: int

    def places(
        self, keys: pa.ChunkedArray, *, key_fields: tuple[str, ...], hash_fields: tuple[str, ...]
    ) -> npt.NDArray[np.int64]:
        """Return for each key the position of its new bucket in `file_ids`."""
        numbers = np.array([bucket_of(file_id) for file_id in self.file_ids], np.int32)
        hashed = hash_fields or key_fields
        buckets = bucket_ids(keys, key_fields=key_fields, hash_fields=hashed, buckets=self.count)
        order = np.argsort(numbers)
        positions: npt.NDArray[np.int64] = order[np.searchsorted(numbers[order], buckets)]
        return positions


def plan_numbered(
    slices: Iterable[FileSlice],
    changes: Mapping[str, NumberedChange],
    *,
    file_bytes: int,
) -> tuple[ClusteringGroup, ...]:
    """Return the groups that execute the changes; `slices` are the newest slices of their partitions."""
    of_bucket: dict[tuple[str, int], list[FileSlice]] = {}
    columns = FileSlices.of(slices)
    # Only slices of partitions that change become objects.
    for piece in columns.filter(members(columns.partitions, sorted(changes))):
        change, bucket = changes[piece.partition], bucket_of(piece.file_id)
        if change.is_resize or bucket in change.sorted_only:
            remainder = bucket % math.gcd(change.before, change.after)
            of_bucket.setdefault((piece.partition, remainder), []).append(piece)
    groups = []
    for (partition, remainder), pieces in sorted(of_bucket.items()):
        change = changes[partition]
        children = range(remainder, change.after, math.gcd(change.before, change.after))
        ids = [bucket_file_id(number, change.uuid) for number in children]
        groups.append(
            ClusteringGroup(
                slices=tuple(ClusteredSlice.of(piece) for piece in pieces),
                outputs=len(ids),
                metrics=metrics_of(pieces, file_bytes),
                extra={_FILE_IDS: json.dumps(ids), _COUNT: str(change.after)},
            )
        )
    return tuple(groups)


# parameters: a planner takes each independent part of the table state
def changed_counts(
    slices: Iterable[FileSlice],
    rules: BucketRules,
    *,
    wanted: str,
    split_bytes: float,
    merge_bytes: float,
    bounds: tuple[int, int | None],
) -> dict[str, int]:
    """Return the new bucket count of each partition whose count has to change.

    Args:
        slices: The newest slices.
        rules: The present bucket counts.
        wanted: A count, or "auto": the count is doubled if the average bucket is larger than `split_bytes`, and halved
            if two average buckets together are smaller than `merge_bytes`.
        split_bytes: See `wanted`.
        merge_bytes: See `wanted`.
        bounds: With "auto", the minimum and maximum count; None is no limit.
    """
    sizes = FileSlices.of(slices).partition_bytes()
    if wanted != "auto":
        return {partition: int(wanted) for partition in sizes if rules.of(partition) != int(wanted)}
    fewest, most = bounds
    counts = {}
    for partition, size in sizes.items():
        count = rules.of(partition)
        if size / count > split_bytes and (most is None or count * 2 <= most):
            counts[partition] = count * 2
        elif size / count * 2 < merge_bytes and count % 2 == 0 and count // 2 >= fewest:
            counts[partition] = count // 2
    return counts


def sorted_changes(
    slices: Iterable[FileSlice],
    rules: BucketRules,
    *,
    busy: Collection[tuple[str, str]],
    is_unsorted: Unsorted,
    new_uuid: Callable[[], str],
) -> dict[str, NumberedChange]:
    """Return the changes that sort the rows of buckets and keep the bucket counts."""
    buckets: dict[str, list[int]] = {}
    columns = FileSlices.of(slices)
    unsorted = columns.filter(is_unsorted(columns) & ~columns.is_in_groups(busy))
    for partition, file_id in zip(unsorted.partitions.to_pylist(), unsorted.file_ids.to_pylist(), strict=True):
        buckets.setdefault(partition, []).append(bucket_of(file_id))
    return {
        partition: NumberedChange(
            before=(count := rules.of(partition)), after=count, uuid=new_uuid(), sorted_only=tuple(sorted(numbers))
        )
        for partition, numbers in sorted(buckets.items())
    }


def encode_changes(changes: Mapping[str, NumberedChange]) -> dict[str, str]:
    """Return the changes as metadata of a plan."""
    document = {
        partition: [change.before, change.after, change.uuid, list(change.sorted_only)]
        for partition, change in sorted(changes.items())
    }
    return {_CHANGES: json.dumps(document)}


def decode_changes(plan: ClusteringPlan) -> dict[str, NumberedChange]:
    """Return the changes of a plan; empty if it changes no numbered buckets."""
    text = plan.extra.get(_CHANGES)
    if text is None:
        return {}
    try:
        return {
            str(partition): NumberedChange(
                before=int(before), after=int(after), uuid=str(uuid), sorted_only=tuple(int(n) for n in only)
            )
            for partition, (before, after, uuid, only) in parse_json(text.encode()).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptTableError(
            f"a clustering plan has invalid changes of buckets: {text[:120]!r}: {error!r}"
        ) from error


def numbered_children(group: ClusteringGroup) -> NumberedChildren | None:
    """Return the new buckets of a group; None if the group does not rewrite numbered buckets."""
    text = group.extra.get(_FILE_IDS)
    if text is None:
        return None
    try:
        file_ids = tuple(str(file_id) for file_id in parse_json(text.encode()))
        return NumberedChildren(file_ids=file_ids, count=int(group.extra[_COUNT]))
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptTableError(f"a clustering plan has invalid buckets: {text[:120]!r}: {error!r}") from error


def rules_after(rules: BucketRules, changes: Mapping[str, NumberedChange]) -> BucketRules:
    """Return the rules with the new bucket counts. Each changed partition gets a pattern that matches its path."""
    added = [(partition_pattern(name), change.after) for name, change in sorted(changes.items()) if change.is_resize]
    patterns = {pattern for pattern, _ in added}
    return BucketRules(rules.default, (*added, *(rule for rule in rules.rules if rule[0] not in patterns)))


def partition_pattern(partition: str) -> str:
    """Return the regular expression of one partition path, with the same meaning in Java and RE2."""
    return f"^{''.join(_escaped(character) for character in partition)}$"


def staged_counts(changes: Iterable[Mapping[str, NumberedChange]]) -> tuple[tuple[str, int], ...]:
    """Return by partition the bucket count for staging, a multiple of the counts before and after each change."""
    counts: dict[str, int] = {}
    for of_plan in changes:
        for partition, change in of_plan.items():
            counts[partition] = math.lcm(counts.get(partition, 1), change.before, change.after)
    return tuple(sorted(counts.items()))


def _escaped(character: str) -> str:
    if _PLAIN.fullmatch(character):
        return character
    # Characters that separate rules are escaped as codes, all other characters with a backslash.
    return f"\\x{ord(character):02x}" if character in ",;" or character.isspace() else f"\\{character}"
