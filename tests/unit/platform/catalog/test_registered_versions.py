"""Registration of tables that can be read but not serviced."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import UnsupportedError
from lakehouse.platform.catalog.registration import assigned_identity
from tests.support.shared import fixtures


def test_registration_warns_of_a_table_that_cannot_be_serviced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with zipfile.ZipFile(fixtures("hudi_v6/mor_v6_h015_parquet_log.zip")) as archive:
        archive.extractall(tmp_path)
    location = str(tmp_path / "mor_v6_h015_parquet_log")
    update_properties(Env(storage=LocalStorage(location)), {"hoodie.table.cdc.enabled": "true"})
    table = Table.open(location)
    env = table.services_as_loaded.table.env
    with caplog.at_level(logging.WARNING):
        assert not assigned_identity(env, table.config).id
    assert "can be read but neither written nor serviced" in caplog.text
    assert "do not have change logs of merge-on-read tables" in caplog.text
    with pytest.raises(UnsupportedError, match="--new-id writes the id"):
        assigned_identity(env, table.config, new_id=True)


def test_table_of_version_6_gets_an_id(tmp_path: Path) -> None:
    with zipfile.ZipFile(fixtures("hudi_v6/mor_v6_h015_parquet_log.zip")) as archive:
        archive.extractall(tmp_path)
    table = Table.open(str(tmp_path / "mor_v6_h015_parquet_log"))
    identity = assigned_identity(table.services_as_loaded.table.env, table.config)
    assert identity.id and Table.open(table.location).config.identity.id == identity.id
