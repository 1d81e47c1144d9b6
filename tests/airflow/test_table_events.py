"""Asset events of an ingestion that writes several tables."""

from __future__ import annotations

import pytest

from lakehouse.spec.contracts.job import IngestReport, JobStatus, combined
from lakehouse_airflow.assets import TABLES
from tests.airflow.test_operators import ORDERS, operator, run_context
from tests.support.fake_submit import FakeSubmit


@pytest.mark.parametrize("status", [JobStatus.COMMITTED, JobStatus.NOTHING_TO_DO])
def test_each_table_that_a_run_or_its_earlier_try_wrote_has_an_event(submit: FakeSubmit, status: JobStatus) -> None:
    written = IngestReport(status=status, table="orders", instant="20260101000000000", rows=3)
    other = IngestReport(status=JobStatus.NOTHING_TO_DO, table="items")
    submit.plan(report=combined([written, other]).to_json())
    task = operator(outlets=[ORDERS, TABLES])
    context = run_context(task)
    assert task.execute(context)["status"] == status
    (event,) = context["outlet_events"][TABLES].asset_alias_events
    assert (event.dest_asset_key.name, event.dest_asset_key.uri) == ("orders", "lakehouse://orders/")
    assert (event.extra["instant"], event.extra["rows"]) == ("20260101000000000", 3)
    assert ORDERS in task.outlets
