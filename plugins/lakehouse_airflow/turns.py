"""Waiting without a slot: a run reschedules itself, and spends none of its tries on that.

It waits for its turn where another run is at the table: the days of a backfill are at it one after the other, however
many of them Airflow starts at once. It waits for data where the spec says `missing: wait`.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from zlib import crc32

from airflow.sdk import Context, timezone
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException

log = logging.getLogger(__name__)

#: How long a run may wait for others in all.
PATIENCE = timedelta(hours=6)
#: After so many seconds and up to as many more: waiting runs should not all start their jobs at one moment.
_AGAIN_S = 8
#: Shortest and longest pause between two looks for data.
SOONEST, LATEST = timedelta(seconds=30), timedelta(minutes=5)


def look_again(context: Context, told: str, patience: timedelta | None = None) -> AirflowException:
    """Return what to raise so that Airflow tries the task again soon, without counting it as a try.

    `told` says what is waited for. After `patience` (PATIENCE) of this it is a failure that no retry changes.
    """
    now = timezone.utcnow()
    share = crc32(f"{context['ti'].run_id} {now}".encode()) % _AGAIN_S
    return _rescheduled(context, told, patience or PATIENCE, now, timedelta(seconds=_AGAIN_S + share))


def wait_for_data(context: Context, told: str, patience: timedelta) -> AirflowException:
    """Return what to raise while data is missing: a reschedule, and after `patience` a failure that no retry changes.

    Every look is a job. The pause between two is a quarter of the time waited, from SOONEST to LATEST.
    """
    now = timezone.utcnow()
    waited = now - _since(context, now)
    return _rescheduled(context, told, patience, now, min(max(waited / 4, SOONEST), LATEST))


def _rescheduled(context: Context, told: str, patience: timedelta, now: datetime, pause: timedelta) -> AirflowException:
    waited = now - _since(context, now)
    if waited > patience:
        return AirflowFailException(f"waited {waited} in vain: {told}")
    log.info("waiting, next look in %s: %s", pause, told)
    return AirflowRescheduleException(now + pause)


def _since(context: Context, now: datetime) -> datetime:
    # Airflow asks its database only if there was a first time.
    return context["ti"].get_first_reschedule_date(context) or now
