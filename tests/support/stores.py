"""Provide each kind of storage to contract tests."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage

KINDS = ("local", "memory", "s3", "hdfs")
_numbers = itertools.count(1)


def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Return an empty store of one of KINDS; a server starts with the first test that needs it."""
    number = next(_numbers)
    if kind == "local":
        return open_storage(str(tmp_path / "store"))
    if kind == "memory":
        return open_storage(f"memory://test-{number}/store")
    if kind == "s3":
        server = request.getfixturevalue("s3_server")
        return open_storage(f"s3://{server.bucket}/test-{number}/store", server.options)
    if kind == "hdfs":
        return open_storage(f"{request.getfixturevalue('hdfs').place()}/store")
    raise ValueError(f"unknown kind of store {kind!r}; use one of {KINDS}")


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.s3) if kind == "s3" else kind for kind in KINDS])
def each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Return an empty store; a test with this fixture runs once for each kind."""
    return make_store(request.param, request, tmp_path)
