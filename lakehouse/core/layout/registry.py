"""The layouts by table version."""

from __future__ import annotations

from lakehouse.core.layout.layout_v6 import LayoutV6
from lakehouse.core.layout.layout_v8 import LayoutV8, LayoutV9
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.errors import UnsupportedError

_LAYOUTS: dict[int, TableLayout] = {layout.version: layout for layout in (LayoutV6(), LayoutV8(), LayoutV9())}

#: Table versions that can be read, and those that can be written, in ascending order.
SUPPORTED_VERSIONS = tuple(_LAYOUTS)
WRITABLE_VERSIONS = tuple(version for version, layout in _LAYOUTS.items() if layout.is_writable)

#: The layout of new tables.
NEWEST: TableLayout = LayoutV9()
#: The layout of the log files that a table had before Hudi upgraded it to a version with completion times.
BEFORE_UPGRADE: TableLayout = LayoutV6()


def table_layout(version: int) -> TableLayout:
    """Return the layout of a table version; raise UnsupportedError for a version that is not supported."""
    layout = _LAYOUTS.get(version)
    if layout is None:
        supported = ", ".join(map(str, SUPPORTED_VERSIONS))
        raise UnsupportedError(
            f"table version {version} is not supported; versions {supported} are", version=str(version)
        )
    return layout


def has_completion_times(version: str) -> bool:
    """Return whether a table that was created with this version has had completion times from its first commit on."""
    first = min(number for number, layout in _LAYOUTS.items() if layout.has_completion_times)
    return version.isascii() and version.isdigit() and int(version) >= first


def is_newer(layout: TableLayout, other: TableLayout) -> bool:
    """Return whether `layout` has a greater version than `other`."""
    return layout.version > other.version


def moves_timeline(source: TableLayout, target: TableLayout) -> bool:
    """Return whether a change between two versions stores the timeline in another folder, with other names."""
    return source.timeline_layout != target.timeline_layout
