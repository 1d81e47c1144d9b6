"""The layouts by table version."""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse.core.layout.layout_v6 import LayoutV6
from lakehouse.core.layout.layout_v8 import LayoutV8, LayoutV9
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.errors import UnsupportedError, UserError, nearest

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


def layout_for(readers: Iterable[str]) -> TableLayout:
    """Return the layout with the greatest version that all readers read, such as `hudi 0.15` or `Trino`.

    Names are compared without case and without the names of makers (`Apache`, `Amazon`). Raises UserError for a reader
    that is not known, or if no version suits all of them.
    """
    names = {_reader_name(reader): reader for layout in _LAYOUTS.values() for reader in layout.readers}
    wanted = [_reader_name(reader) for reader in readers]
    for name in wanted:
        if name not in names:
            raise UserError(
                f"reader {name!r} is not known.{nearest(name, names)} Readers are {', '.join(names.values())}"
            )
    for layout in reversed(_LAYOUTS.values()):
        if layout.is_writable and {*wanted} <= {_reader_name(reader) for reader in layout.readers}:
            return layout
    raise UserError(f"no table version is read by all of {', '.join(names[name] for name in wanted)}")


def unread_by(readers: Iterable[str], layout: TableLayout) -> list[str]:
    """Return the readers that do not read the layout."""
    names = {_reader_name(reader) for reader in layout.readers}
    return [reader.strip() for reader in readers if _reader_name(reader) not in names]


def _reader_name(text: str) -> str:
    return " ".join(text.casefold().split()).removeprefix("apache ").removeprefix("amazon ")


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
