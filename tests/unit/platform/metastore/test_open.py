"""The metastore's client is an extra: what asks no metastore works without it, and what does says what is missing."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

from lakehouse.errors import UserError
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.spec.options.sync import SyncPolicy

SCRIPT = """
    import sys
    sys.modules["pymetastore"] = None
    import lakehouse.cli.ingest, lakehouse.cli.publish, lakehouse.cli.sync
    import lakehouse.spark.source, lakehouse.core.table.table
    from lakehouse.errors import UserError
    from lakehouse.platform.metastore.open import open_metastore
    from lakehouse.spec.options.sync import SyncPolicy
    try:
        open_metastore(SyncPolicy(), also="thrift://127.0.0.1:1")
    except UserError as error:
        print(error)
"""


def test_without_its_client_everything_else_works() -> None:
    done = subprocess.run([sys.executable, "-c", dedent(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "needs a package that is not installed" in done.stdout
    assert "pip install 'lakehouse[hive]'" in done.stdout


def test_the_most_particular_address_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_METASTORE", "thrift://environment:1")
    policy = SyncPolicy(uris="thrift://policy:1")
    assert open_metastore(policy, also="thrift://spec:1").name == "thrift://spec:1"
    assert open_metastore(policy).name == "thrift://policy:1"
    assert open_metastore(SyncPolicy()).name == "thrift://environment:1"
    monkeypatch.delenv("LAKEHOUSE_METASTORE")
    with pytest.raises(UserError, match="publishing: no metastore is named"):
        open_metastore(SyncPolicy(), what="publishing")
