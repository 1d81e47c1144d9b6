"""Registration of tables that can be read but not serviced."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path

import pytest

from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError
from lakehouse.platform.catalog.registration import assigned_identity
from tests.support.shared import fixtures


def test_registration_warns_of_a_table_that_cannot_be_serviced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with zipfile.ZipFile(fixtures("hudi_v6/cow_v6_h015_mdt_services.zip")) as archive:
        archive.extractall(tmp_path)
    table = Table.open(str(tmp_path / "cow_v6_h015_mdt_services"))
    env = table.services_as_loaded.table.env
    with caplog.at_level(logging.WARNING):
        assert not assigned_identity(env, table.config).id
    assert "can be read but neither written nor serviced" in caplog.text
    assert "lakehouse metadata rebuild --option hoodie.metadata.enable=false" in caplog.text
    with pytest.raises(UnsupportedError, match="--new-id writes the id"):
        assigned_identity(env, table.config, new_id=True)


def test_table_of_version_6_gets_an_id(tmp_path: Path) -> None:
    with zipfile.ZipFile(fixtures("hudi_v6/mor_v6_h015_parquet_log.zip")) as archive:
        archive.extractall(tmp_path)
    table = Table.open(str(tmp_path / "mor_v6_h015_parquet_log"))
    identity = assigned_identity(table.services_as_loaded.table.env, table.config)
    assert identity.id and Table.open(table.location).config.identity.id == identity.id
