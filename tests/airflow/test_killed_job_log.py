"""The log of a task whose job was killed is the one that how-to/recover-a-failed-run.md shows."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.airflow.runs import run_context
from tests.airflow.test_operators import operator
from tests.support.fake_submit import FakeSubmit
from tests.support.recovery import cases


def test_killed_job_without_a_report_is_retried_and_shows_the_exit_code(submit: FakeSubmit) -> None:
    case = cases()["The process was killed"]
    submit.plan(exit_code=case.exit_code)
    task = operator()
    with pytest.raises(AirflowException) as raised:
        task.execute(run_context(task))
    assert not isinstance(raised.value, AirflowFailException)
    assert case.matches(str(raised.value)), str(raised.value)
