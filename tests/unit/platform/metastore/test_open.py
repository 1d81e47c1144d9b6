"""Opening a metastore: order of addresses, and the error without the optional client."""

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
    import lakehouse.cli.ingest, lakehouse.cli.publish
    import lakehouse.spark.source, lakehouse.core.table.table
    from lakehouse.errors import UserError
    from lakehouse.platform.metastore.open import open_metastore
    from lakehouse.spec.options.sync import SyncPolicy
    try:
        open_metastore(SyncPolicy(), override="thrift://127.0.0.1:1")
    except UserError as error:
        print(error)
"""


def test_other_modules_work_without_the_metastore_client() -> None:
    done = subprocess.run([sys.executable, "-c", dedent(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "needs a package that is not installed" in done.stdout
    assert "pip install 'lakehouse-tables[hive]'" in done.stdout


def test_address_of_the_call_precedes_policy_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_METASTORE", "thrift://environment:1")
    policy = SyncPolicy(uris="thrift://policy:1")
    assert open_metastore(policy, override="thrift://spec:1").name == "thrift://spec:1"
    assert open_metastore(policy).name == "thrift://policy:1"
    assert open_metastore(SyncPolicy()).name == "thrift://environment:1"
    monkeypatch.delenv("LAKEHOUSE_METASTORE")
    with pytest.raises(UserError, match="publishing: no metastore is configured"):
        open_metastore(SyncPolicy(), purpose="publishing")
