"""Settings with which the JVM of a local session and its Python workers talk over Unix sockets.

Over TCP a short task takes 40 to 50 ms more, about the time for which Linux delays the acknowledgement of a packet.
"""

from __future__ import annotations

import atexit
import socket
from collections.abc import Mapping
from functools import cache
from tempfile import TemporaryDirectory

ENABLED, FOLDER = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"
#: Spark's own switch, an environment variable.
SWITCH = "PYSPARK_UDS_MODE"
#: Spark refuses a longer path of the folder, because paths of sockets are short.
_MOST_CHARACTERS = 61


def unix_sockets(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return settings that turn Unix sockets on for a session on this machine; empty where they cannot be used.

    The sockets are in a new folder that only this user can open, because Spark then asks for no secret. It is removed
    when the process ends. Other machines do not have the folder, so sessions on a cluster keep their settings.

    Args:
        settings: The settings that the session will have. A value of the user for `ENABLED` is kept.
        environ: The environment of the process.
    """
    if not settings.get("spark.master", "").startswith("local") or ENABLED in settings or SWITCH in environ:
        return {}
    if not hasattr(socket, "AF_UNIX"):
        return {}
    place = _folder()
    return {ENABLED: "true", FOLDER: place} if len(place) <= _MOST_CHARACTERS else {}


@cache
def _folder() -> str:
    # The JVM may still create a socket when the process ends.
    created = TemporaryDirectory(prefix="lakehouse-", ignore_cleanup_errors=True)
    atexit.register(created.cleanup)
    return created.name
