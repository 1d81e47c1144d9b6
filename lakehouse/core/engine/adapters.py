"""Selects the adapter of a distributed engine by the class of a session or frame, without importing the engine.

An adapter is a module that implements `EngineAdapter`. It is imported when a caller first passes one of its objects, so
that this package works where the engine is not installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from lakehouse.core.engine.frames import ARROW_FRAMES, require_arrow
from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.protocol import Engine
from lakehouse.errors import UserError

if TYPE_CHECKING:
    # Imported when a statement runs on an engine.
    from lakehouse.core.engine.pieces import Shuffle

#: The adapter's module by the top-level package in which its sessions and frames are defined.
ADAPTERS = {"pyspark": "lakehouse.spark.adapter"}


class EngineAdapter(Protocol):
    """The functions that an adapter module provides so that operations can run on a distributed engine."""

    def session_engine(self, session: Any, memory_budget_bytes: int) -> Engine:
        """Return an engine that runs tasks on the session."""
        ...

    def frame_engine(self, frame: Any, memory_budget_bytes: int) -> Engine:
        """Return an engine that runs tasks on the session of the frame."""
        ...

    def frame_batches(self, frame: Any, batch_bytes: int) -> pa.RecordBatchReader:
        """Return the rows of a frame as a stream of this process, which is read once."""
        ...

    def unique_frame(self, frame: Any, identity: Sequence[str], columns: Sequence[str]) -> Any:
        """Return some columns of a frame; raise UserError if several of its rows have one key `identity`."""
        ...

    def shuffle(self, owner: Any, memory_budget_bytes: int) -> Shuffle:
        """Return the shuffle for a session or a frame."""
        ...

    def scan_to_frame(self, session: Any, scan: Any) -> Any:
        """Return the rows of a planned read (`Scan` or `ChangeScan`) as a frame of the session."""
        ...


def session_engine(session: Any, memory_budget_bytes: int) -> Engine:
    """Return the engine of a session, or threads of this process if the session is None.

    Raises UserError if no adapter supports the class of the session.
    """
    if session is None:
        return LocalEngine()
    return session_adapter(session).session_engine(session, memory_budget_bytes)


def frame_engine(frame: Any, memory_budget_bytes: int) -> Engine:
    """Return the engine that can read the frame: its adapter's engine, or threads of this process for Arrow data.

    Raises UserError with the way to convert other data.
    """
    adapter = _adapter_of(frame)
    if adapter is not None:
        return adapter.frame_engine(frame, memory_budget_bytes)
    require_arrow(frame)
    return LocalEngine()


def frame_schema(frame: Any) -> pa.Schema:
    """Return the columns of a frame without running a task."""
    return frame_engine(frame, 1).schema(frame)


def frame_batches(frame: Any, batch_bytes: int) -> pa.RecordBatchReader:
    """Return the rows of an engine's frame as a stream, which is read once; its batches have about `batch_bytes`."""
    adapter = _adapter_of(frame)
    assert adapter is not None, "the caller passes a frame of an engine"
    return adapter.frame_batches(frame, batch_bytes)


def unique_frame(frame: Any, identity: Sequence[str], columns: Sequence[str]) -> Any:
    """Return some columns of an engine's frame; raise UserError if several of its rows have one key `identity`."""
    adapter = _adapter_of(frame)
    assert adapter is not None, "the caller passes a frame of an engine"
    return adapter.unique_frame(frame, identity, columns)


def engine_shuffle(owner: Any, memory_budget_bytes: int) -> Shuffle:
    """Return the shuffle of an engine's session or frame; raise UserError if no adapter supports its class."""
    return session_adapter(owner).shuffle(owner, memory_budget_bytes)


def is_frame(value: Any) -> bool:
    """Whether an engine can read the value as rows: Arrow data, or an object of an adapter."""
    return isinstance(value, ARROW_FRAMES) or _adapter_of(value) is not None


def session_adapter(session: Any) -> EngineAdapter:
    """Return the adapter of a session; raise UserError if no adapter supports its class."""
    adapter = _adapter_of(session)
    if adapter is None:
        raise UserError(f"expected a session of {', '.join(ADAPTERS)}, not {type(session).__name__}")
    return adapter


def _adapter_of(value: Any) -> EngineAdapter | None:
    for base in type(value).__mro__:
        module = ADAPTERS.get(base.__module__.partition(".")[0])
        if module is not None:
            return cast(EngineAdapter, importlib.import_module(module))
    return None
