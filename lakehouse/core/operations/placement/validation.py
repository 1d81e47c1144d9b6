"""Validate that the file groups of a table are the buckets that its index expects."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from lakehouse.core.format.hashing_metadata import metadata_folder
from lakehouse.core.index.hash.consistent_hashing import Ring
from lakehouse.core.index.hash.places import KeyPlaces
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.bucket_rules import readable_bucket_rules
from lakehouse.core.operations.placement.rings import load_rings, uses_ring
from lakehouse.core.planning.validate import check_buckets, check_rings
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.model.files import FileSlice
from lakehouse.model.index_type import stored_index_type
from lakehouse.model.validation import Finding
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table.bucket_rules import BucketRules


def validated_places(
    table: LoadedTable, policies: Policies, slices: Iterable[FileSlice]
) -> tuple[KeyPlaces, list[Finding]]:
    """Return the buckets to which keys belong, and findings about file groups that are not buckets."""
    slices = tuple(slices)
    rules, findings = _rules(table, policies)
    if rules is not None:
        findings += check_buckets(slices, rules)
    rings, wrong = _rings(table, policies, slices)
    index = policies.index
    places = KeyPlaces(
        buckets=rules,
        rings=rings,
        hash_fields=index.hashed_fields,
        follows_paths=not index.index_type.is_global or index.moves_rows,
        in_table=stored_index_type(table.config.raw, index.type).is_global,
    )
    return places, [*findings, *wrong]


def _rules(table: LoadedTable, policies: Policies) -> tuple[BucketRules | None, list[Finding]]:
    try:
        return readable_bucket_rules(table, policies.index), []
    except (CorruptTableError, UserError) as error:
        kind = "unchecked" if isinstance(error, UnsupportedError) else "bucket.layout"
        return None, [Finding(invariant=kind, problem=error.message)]


def _rings(
    table: LoadedTable, policies: Policies, slices: Iterable[FileSlice]
) -> tuple[dict[str, Ring], list[Finding]]:
    """Return the rings of a table with consistent hashing, and findings about them. Other tables have none."""
    if not policies.index.index_type.has_ring and not uses_ring(table):
        return {}, []
    rings: dict[str, Ring] = {}
    findings: list[Finding] = []
    readable: list[FileSlice] = []
    for partition, group in groupby(sorted(slices, key=attrgetter("partition")), key=attrgetter("partition")):
        try:
            rings |= load_rings(table, [partition])
        except CorruptTableError as error:
            problem = f"{error.message}; delete the file before the partition is overwritten"
            findings.append(Finding(invariant="bucket.layout", problem=problem, path=metadata_folder(partition)))
        else:
            readable += group
    return rings, [*findings, *check_rings(readable, rings)]
