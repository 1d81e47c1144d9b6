"""The formats of views by name."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.platform.export.delta.delta_view import DeltaView
from lakehouse.platform.export.iceberg.iceberg_view import IcebergView
from lakehouse.platform.export.view import ViewFormat
from lakehouse.spec.options.export import DELTA, ICEBERG, ExportPolicy

VIEW_FORMATS: Mapping[str, ViewFormat] = {ICEBERG: IcebergView(), DELTA: DeltaView()}


def view_formats(policy: ExportPolicy) -> tuple[ViewFormat, ...]:
    """Return the formats that a policy declares."""
    return tuple(VIEW_FORMATS[name] for name in policy.names)
