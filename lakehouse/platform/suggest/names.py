"""Names of columns that a table can have: letters, digits and underscores. Other names of a source get a new one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.platform.suggest.sample import Sample, SampledColumn

_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LETTERS = {"ß": "ss", "ø": "o", "æ": "ae", "ł": "l", "đ": "d", "%": "percent", "#": "number"}


def with_legal_names(sample: Sample) -> Sample:
    """Return a sample whose columns have legal names, and whose `select` gives these names to the columns.

    A column with fields of other names becomes a string, because `select` would have to rebuild it.
    """
    if sample.is_database:
        return sample
    sample = _without_meta_columns(sample)
    columns = tuple(_without_illegal_fields(column) for column in sample.columns)
    others = [column.name for column in columns if not _LEGAL.fullmatch(column.name)]
    if not others:
        return replace(sample, columns=columns)
    taken = {column.name.lower() for column in columns if column.name not in others}
    names: dict[str, str] = {}
    for name in others:
        names[name] = _unique(legal_name(name), taken)
        taken.add(names[name].lower())
    quoted = {name: "`" + name.replace("`", "``") + "`" for name in others}
    select = [
        f"* EXCEPT ({', '.join(quoted.values())})",
        *(f"{quoted[name]} AS {new}" for name, new in names.items()),
    ]
    renamed = tuple(
        replace(column, name=names[column.name], source_name=column.name) if column.name in names else column
        for column in columns
    )
    note = f"names that a table cannot have get new ones in 'select': {', '.join(map(repr, others))}"
    return replace(sample, columns=renamed, ingest={**sample.ingest, "select": select}, notes=(*sample.notes, note))


def legal_name(name: str) -> str:
    """Return a name in letters of ASCII, digits and underscores, that begins with a letter or an underscore."""
    text = "".join(_LETTERS.get(character, character) for character in name.strip().lower())
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    text = re.sub(r"[^a-z0-9_]+", "_", text).strip("_")
    return text if text and not text[0].isdigit() else f"column_{text}".rstrip("_")


def _unique(name: str, taken: Iterable[str]) -> str:
    used = set(taken)
    number, unique = 2, name
    while unique in used:
        unique, number = f"{name}_{number}", number + 1
    return unique


def _without_meta_columns(sample: Sample) -> Sample:
    """Return a sample without the meta columns of Hudi, which a write computes itself."""
    meta = [column.name for column in sample.columns if column.name in META_COLUMNS]
    if not meta:
        return sample
    note = f"left out, because each commit computes them: {', '.join(meta)}"
    columns = tuple(column for column in sample.columns if column.name not in meta)
    return replace(sample, columns=columns, notes=(*sample.notes, note))


def _without_illegal_fields(column: SampledColumn) -> SampledColumn:
    """Return a column as a string if a field inside of it has a name that a table cannot have."""
    illegal = re.search(r"`((?:[^`]|``)+)`", column.type)
    if illegal is None:
        return column
    note = f"JSON as text, because a table cannot have the field name {illegal[1]!r}"
    return replace(column, type="string", key_type="string", notes=(*column.notes, note))
