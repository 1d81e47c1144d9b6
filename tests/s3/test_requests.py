"""The requests of small commits that an S3 server receives are those of the tables in docs/performance.md."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from lakehouse.core.table.table import Table
from tests.support.requests import purpose_of
from tests.support.s3 import FaultyProxy, S3Server
from tests.unit.core.operations.test_request_tables import measured, rows

pytestmark = pytest.mark.s3
_numbers = itertools.count(1)
OPERATIONS: dict[str, tuple[str, Callable[[Table], object]]] = {
    "upsert": ("COPY_ON_WRITE", lambda table: table.upsert(rows(4))),
    "upsert, merge-on-read": ("MERGE_ON_READ", lambda table: table.upsert(rows(4))),
}


def received(proxy: FaultyProxy, bucket: str, root: str) -> Counter[tuple[str, str]]:
    """Return the number of requests that the server received, by purpose and verb."""
    counts: Counter[tuple[str, str]] = Counter()
    for seen, target in zip(proxy.seen, proxy.targets, strict=True):
        url, method = urlsplit(target), seen.partition(" ")[0]
        query, key = parse_qs(url.query), unquote(url.path).removeprefix(f"/{bucket}").lstrip("/")
        if method == "POST" and "delete" in url.query:
            counts["cleanup", "DELETE"] += 1
        elif "list-type" in query:
            counts[purpose_of(query["prefix"][0].removeprefix(f"{root}/").rstrip("/")), "LIST"] += 1
        else:
            counts[purpose_of(key.removeprefix(f"{root}/")), method] += 1
    return counts


@pytest.mark.parametrize("name", OPERATIONS)
def test_server_receives_the_requests_of_the_page(name: str, s3_server: S3Server, s3_proxy: FaultyProxy) -> None:
    table_type, operation = OPERATIONS[name]
    root = f"requests-{next(_numbers)}/table"
    reach = replace(s3_server, endpoint=s3_proxy.endpoint).options
    table = Table.create(
        f"s3://{s3_server.bucket}/{root}",
        name="t",
        record_key="id",
        partition_by="p",
        ordering="ts",
        table_type=table_type,
        storage_options=reach,
    )
    table.bulk_insert(rows(1))
    for value in (2, 3):
        table.upsert(rows(value))
    s3_proxy.seen.clear()
    s3_proxy.targets.clear()
    operation(table)
    assert received(s3_proxy, s3_server.bucket, root) == measured()[name].purposes
