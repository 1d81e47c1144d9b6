"""The documents next to a stream's lease, and the stream state for readers without Spark.

.hoodie/.locks/ingest_stream[.<input>].json           lease: the stream renews it
.hoodie/.locks/ingest_stream[.<input>].status.json    StreamStatus: the stream writes it after each run
.hoodie/.locks/ingest_stream[.<input>].stop.json      StopRequest: the stream reads it between runs and every 20 s
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from lakehouse.core.env import Env
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.system.processes import ProcessId
from lakehouse.core.timeline.locks.lease import FileRegister, LeaseLock
from lakehouse.core.timeline.locks.lease_record import LeaseRecordCodec
from lakehouse.model.document import parse_json
from lakehouse.spec.contracts.stream import StopRequest, StreamState, StreamStatus

LEASE_MS, RENEW_MS = 60_000, 20_000
_FOLDER = ".hoodie/.locks"


@dataclass(frozen=True, slots=True)
class StreamFiles:
    """The documents of the streams for a table or one of its inputs."""

    storage: Storage
    input: str = ""

    @property
    def lease_path(self) -> str:
        """The path of the lease."""
        return self._path("json")

    def status(self) -> StreamStatus | None:
        """Return the newest status, or None if there is none."""
        data = self._get(self._path("status.json"))
        return None if data is None else StreamStatus.from_json(data)

    def put_status(self, status: StreamStatus) -> None:
        """Replace the status."""
        self.storage.put(self._path("status.json"), status.to_json().encode())

    def stop(self) -> StopRequest:
        """Return the newest stop request, or an empty one if there is none."""
        data = self._get(self._path("stop.json"))
        return StopRequest() if data is None else StopRequest.from_json(data)

    def put_stop(self, request: StopRequest) -> None:
        """Replace the stop request."""
        self.storage.put(self._path("stop.json"), request.to_json().encode())

    def _get(self, path: str) -> bytes | None:
        try:
            return self.storage.get(path)
        except NotFoundError:
            return None

    def _path(self, ending: str) -> str:
        return f"{_FOLDER}/ingest_stream{f'.{self.input}' if self.input else ''}.{ending}"


def open_lease(env: Env, input: str = "") -> LeaseLock:
    """Return the lease of the streams for a table or one of its inputs; `env` is the table's environment."""
    path = StreamFiles(env.storage, input).lease_path
    register, codec = FileRegister(env.storage, path), LeaseRecordCodec(env)
    name = f"{env.storage.root}/{path}"
    return LeaseLock(env, register, codec, name=name, lease_ms=LEASE_MS, renew_ms=RENEW_MS)


def read_state(env: Env, table: str, input: str = "") -> StreamState:
    """Return the state of a table's stream; `env` is the table's environment."""
    files = StreamFiles(env.storage, input)
    # The lease is read first: a stream writes its last status before it releases the lease.
    data, _ = FileRegister(env.storage, files.lease_path).read()
    codec = LeaseRecordCodec(env)
    lease = None if data is None else codec.decode(data)
    # Bytes that are not a lease count as a held lock, as for the next stream.
    alive = data is not None and (lease is None or not (lease.released or codec.is_over(data, lease)))
    status = files.status()
    holder = _holder(data)
    return StreamState(
        table=table,
        alive=alive,
        host="" if holder is None else holder.host,
        until_ms=0 if lease is None else lease.until_ms,
        stop_asked=status is not None and not status.ended and files.stop().run_id == status.run_id,
        status=status,
    )


# parameters: the request, and functions that tests replace
def ask_to_stop(
    env: Env,
    request: StopRequest,
    input: str = "",
    *,
    is_alive: bool,
    send: Callable[[int, int], None] = os.kill,
) -> bool:
    """Store a stop request; if the stream is a process on this host, also send SIGTERM, once per request.

    Returns whether the signal was sent. Without a signal the stream reads the request within `RENEW_MS`.
    """
    files = StreamFiles(env.storage, input)
    is_repeated = files.stop().run_id == request.run_id
    files.put_stop(request)
    data, _ = FileRegister(env.storage, files.lease_path).read()
    process, current = _holder(data), env.processes.current()
    if not is_alive or is_repeated or process is None or process == current or not current.is_comparable(process):
        return False
    if not env.processes.is_running(process):
        return False
    # A second SIGTERM would end the stream without waiting for its commit.
    send(process.pid, signal.SIGTERM)
    return True


def _holder(data: bytes | None) -> ProcessId | None:
    try:
        return None if data is None else ProcessId.from_record(parse_json(data))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
