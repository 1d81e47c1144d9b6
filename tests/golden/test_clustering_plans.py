"""Test that clustering plans of Hudi are decoded, encoded to equal records, and equal the plans of this package."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from lakehouse.core.format.file_names import parse_base_file, parse_instant
from lakehouse.core.format.timeline.clustering import decode_clustering_plan, encode_clustering_plan
from lakehouse.core.format.timeline.commit_metadata import decode_requested_replace
from lakehouse.core.planning.clustering import LAYOUT_KEY, plan_clustering
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, State
from lakehouse.spec.options.clustering import ClusteringPolicy
from tests.support.shared import fixtures


def plans() -> list[tuple[Path, str, bytes]]:
    """Return (zip, path in the zip, content) of the requested file of each clustering in the fixtures."""
    result = []
    for path in sorted(fixtures("hudi_tables").glob("*_v9_*.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                instant = parse_instant(name.rpartition("/")[2])
                requested = (Action.CLUSTERING, State.REQUESTED)
                if instant is not None and "/metadata/" not in name and (instant.action, instant.state) == requested:
                    result.append((path, name, archive.read(name)))
    return result


def record_of(data: bytes) -> Any:
    return next(iter(fastavro.reader(io.BytesIO(data))))


def decoded(data: bytes) -> ClusteringPlan:
    plan = decode_clustering_plan(data)
    assert plan is not None
    return plan


def test_encoded_clustering_plans_equal_hudis() -> None:
    count = 0
    for _, _, data in plans():
        theirs, plan = record_of(data), decoded(data)
        first = theirs["clusteringPlan"]["inputGroups"][0]["slices"][0]
        folder = (
            first["dataFilePath"].rpartition("/")[0].removesuffix(f"/{first['partitionPath']}").removeprefix("file:")
        )
        ours = encode_clustering_plan(plan, base_path=folder)
        assert record_of(ours) == theirs
        assert decoded(ours) == plan
        assert plan.replaced == decode_requested_replace(data)
        count += 1
    assert count >= 6


def test_paths_of_object_stores_are_not_changed() -> None:
    plan = decoded(plans()[0][2])
    slices = record_of(encode_clustering_plan(plan, base_path="s3://bucket/t/"))["clusteringPlan"]["inputGroups"][0]
    piece = plan.groups[0].slices[0]
    assert slices["slices"][0]["dataFilePath"] == f"s3://bucket/t/{piece.partition}/{piece.data_file}"


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_clustering_plans_equal_hudis_except_for_files_without_benefit(kind: str) -> None:
    for path, name, data in plans():
        theirs = decoded(data)
        if not path.stem.startswith(kind) or any(piece.log_files for piece in theirs.slices):
            continue
        folder = name.partition("/.hoodie/")[0]
        slices = []
        with zipfile.ZipFile(path) as archive:
            for piece in theirs.slices:
                inside = "/".join(filter(None, (folder, piece.partition, piece.data_file)))
                base = parse_base_file(str(piece.data_file), piece.partition, archive.getinfo(inside).file_size)
                assert base is not None
                slices.append(
                    FileSlice(partition=piece.partition, file_id=piece.file_id, base_instant=base.instant, base=base)
                )
        ours = plan_clustering(slices, (), ClusteringPolicy())
        worth = tuple(group for group in theirs.groups if len(group.slices) > 1)
        # The order of files of equal size is not defined.
        assert ours is not None and _by_group(ours.groups) == _by_group(worth)
        assert replace(ours, groups=(), extra={}) == replace(theirs, groups=(), strategy="", extra={})
        assert ours.extra == {LAYOUT_KEY: "linear"}


def _by_group(groups: Any) -> dict[str, Any]:
    return {
        group.partition: ({piece.file_id for piece in group.slices}, group.outputs, group.metrics) for group in groups
    }
