"""A schedule means something else to Airflow than its author meant."""

from __future__ import annotations

import pytest

from lakehouse.errors import UserError
from lakehouse.spec.table.table_spec import parse_spec

SPEC = "table: t\nlocation: lake/t\nrecord_key: id\n"


@pytest.mark.parametrize("schedule", ["0 0 3 * * *", "*/30 * * * * *", "0 3 * * * 0 2026"])
def test_cron_expressions_with_more_than_five_fields_are_refused(schedule: str) -> None:
    """taichino/croniter#122, taichino/croniter#176: a sixth field is read as seconds, so runs start all the time."""
    count = len(schedule.split())
    with pytest.raises(UserError, match=f"t.yaml:4: schedule: .* has {count} fields"):
        parse_spec(f'{SPEC}ingest: {{path: landing, schedule: "{schedule}"}}\n', source="t.yaml")
    section = f'services: {{publish: {{database: d, schedule: "{schedule}"}}}}\n'
    with pytest.raises(UserError, match=f"schedule.* has {count} fields"):
        parse_spec(SPEC + section, source="t.yaml").publication()


@pytest.mark.parametrize("schedule", ["*/5 * * * *", "0 0 1,15 * mon-fri", "@daily", "  15 3  * * 0 "])
def test_cron_expressions_with_five_fields_and_presets_are_accepted(schedule: str) -> None:
    """taichino/croniter#122: the remedy of the refusal is an expression with five fields."""
    spec = parse_spec(f'{SPEC}ingest: {{path: landing, schedule: "{schedule}"}}\n', source="t.yaml")
    assert spec.ingest is not None and spec.ingest.schedule == schedule.strip()
