"""Handles refused run parameters: the task fails without a retry, and the note of its run contains the reason.

A task cannot write notes, because it has no access to Airflow's database. It stores the reason as an XCom value. When
the run has failed, a listener in the scheduler copies it into the notes of the run and the task. When the run is
cleared and starts again, the notes are removed (`missing_pools`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lakehouse.errors import UserError
from lakehouse_airflow.compat import AirflowFailException

log = logging.getLogger(__name__)

#: Key of the XCom value with the reason. Airflow deletes it when the task starts again.
REFUSED = "lakehouse_refused"


@contextmanager
def noted_refusals(context: Mapping[str, Any]) -> Iterator[None]:
    """If a `with` block raises an error about wrong parameters, fail the task without a retry and note the reason."""
    try:
        yield
    except UserError as error:
        _keep_reason(context, str(error))
        raise AirflowFailException(str(error)) from error
    except AirflowFailException as error:
        # A command in Spark's environment refused the parameters.
        _keep_reason(context, str(error))
        raise


def _keep_reason(context: Mapping[str, Any], reason: str) -> None:
    """Store the reason for the note. The task fails anyway, so an error here is only logged."""
    try:
        context["ti"].xcom_push(key=REFUSED, value=reason)
    except Exception:
        log.warning("the reason could not be stored for the note of the run", exc_info=True)
