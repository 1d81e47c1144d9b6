"""Tables that another run is at: what was asked for looks again later, and spends none of its tries on waiting.

The days of a backfill of a table are at it one after the other, however many of them Airflow starts at once.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from zlib import crc32

from airflow.sdk import Context, timezone
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException

log = logging.getLogger(__name__)

#: How long a run may wait for others in all.
PATIENCE = timedelta(hours=6)
#: After so many seconds and up to as many more: waiting runs should not all start their jobs at one moment.
_AGAIN_S = 8


def look_again(context: Context, told: str, patience: timedelta | None = None) -> AirflowException:
    """Return what to raise so that Airflow tries the task again soon, without counting it as a try.

    `told` says what is waited for. After `patience` (PATIENCE) of this it is a failure that no retry changes.
    """
    now, limit = timezone.utcnow(), patience or PATIENCE
    # Airflow asks its database only if there was a first time.
    since = context["ti"].get_first_reschedule_date(context) or now
    if now - since > limit:
        return AirflowFailException(f"waited {now - since} in vain: {told}")
    log.info("waiting for its turn: %s", told)
    share = crc32(f"{context['ti'].run_id} {now}".encode()) % _AGAIN_S
    return AirflowRescheduleException(now + timedelta(seconds=_AGAIN_S + share))
