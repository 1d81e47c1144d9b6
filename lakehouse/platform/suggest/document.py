"""Write a suggested table spec as YAML, with evidence and doubts as comments."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.platform.suggest.roles import (
    KeyChoice,
    OrderingChoice,
    PartitionChoice,
    choose_key,
    choose_ordering,
    choose_partition,
)
from lakehouse.platform.suggest.sample import Sample, SampledColumn, TableSet
from lakehouse.spec.table.table_spec import parse_spec

_WIDTH = 118


def suggested_spec(sample: Sample, *, table: str = "", location: str = "") -> str:
    """Return a valid table spec for a sample as a YAML string that ends with a line break.

    Args:
        sample: The sample.
        table: The name of the table; by default the name in the sample.
        location: The location of the table; by default `lake/<table>`.
    """
    sample = with_legal_names(sample)
    name = table or sample.name
    default = f"lake/{name.rpartition('.')[2]}"
    key = choose_key(sample)
    ordering = OrderingChoice() if sample.is_database else choose_ordering(sample, key)
    partition = choose_partition(sample, key, ordering)
    lines = [
        *_comment((*sample.scope, *sample.notes)),
        f"table: {_flow(name)}",
        f"location: {_flow(location or default)}",
        *_type_lines(sample, key),
        *_key_lines(key),
        *(_database_lines(sample, partition) if sample.is_database else _file_lines(sample, key, ordering, partition)),
        *_ingest_lines(sample.ingest),
    ]
    text = "\n".join(lines) + "\n"
    parse_spec(text, source="the suggested spec")
    return text


def several_tables_spec(tables: TableSet, *, table: str = "", location: str = "") -> str:
    """Return a spec for several database tables; see `suggested_spec` for one table."""
    name = table or tables.name
    lines = [
        *_comment(tables.scope),
        *_comment(("the name of the ingestion",)),
        f"table: {_flow(name)}",
        *_comment(("the tables are below this folder",)),
        f"location: {_flow(location or f'lake/{name}')}",
        *_comment(("the source changes rows: log files are merged by a compaction, so a commit stays small",)),
        "type: MERGE_ON_READ",
        *_ingest_lines(tables.ingest),
        *_comment(tables.notes, indent="  "),
    ]
    text = "\n".join(lines) + "\n"
    parse_spec(text, source="the suggested spec")
    return text


def _file_lines(sample: Sample, key: KeyChoice, ordering: OrderingChoice, partition: PartitionChoice) -> Iterator[str]:
    if sample.ordering:
        yield from _comment((sample.ordering_note,))
        yield f"ordering: {_flow(list(sample.ordering))}"
    else:
        yield from _ordering_lines(ordering)
    for name, value in sample.settings.items():
        yield f"{name}: {_flow(value)}"
    yield from _partition_lines(partition)
    yield from _schema_lines(sample, key, partition)


def _database_lines(sample: Sample, partition: PartitionChoice) -> Iterator[str]:
    yield from _comment(("ordering: none, because changes follow the order of the log",))
    if partition.column is None:
        yield from _comment("partition_by: " + text for text in partition.evidence)
    else:
        yield from _comment(
            (
                "not sure: for partitions by day, add the next two lines. The index finds rows whose time changes",
                *partition.evidence[:1],
            )
        )
        yield f"# partition_by: {{{_flow(partition.column)}: {_flow(partition.settings)}}}"
        yield "# index: global_simple"
    yield from _comment(("columns and types are those of the source table:",))
    for column in sample.columns:
        nulls = f"; null in {column.nulls:,} sampled rows" if column.nulls else ""
        yield from _comment((f"  {column.name}: {column.type}{nulls}",))


def _type_lines(sample: Sample, key: KeyChoice) -> Iterator[str]:
    if sample.changes_rows:
        yield from _comment(("the source changes rows: log files are merged by a compaction, so a commit stays small",))
        yield "type: MERGE_ON_READ"
        return
    reason = "rows are added" if key.is_unique else "rows of the sample replace each other"
    yield from _comment(
        (f"{reason}: MERGE_ON_READ writes less for each commit if many commits change few rows of large files",)
    )
    yield "type: COPY_ON_WRITE"


def _key_lines(key: KeyChoice) -> Iterator[str]:
    yield from _comment(key.evidence)
    yield f"record_key: {_flow(list(key.columns))}"


def _ordering_lines(ordering: OrderingChoice) -> Iterator[str]:
    if ordering.column is None:
        yield from _comment("ordering: none, " + text for text in ordering.evidence)
        return
    yield from _comment(ordering.evidence)
    yield f"ordering: {_flow(ordering.column)}"


def _partition_lines(partition: PartitionChoice) -> Iterator[str]:
    if partition.column is None:
        yield from _comment("partition_by: " + text for text in partition.evidence)
        return
    yield from _comment(partition.evidence)
    yield f"partition_by: {{{_flow(partition.column)}: {_flow(partition.settings)}}}"


def _schema_lines(sample: Sample, key: KeyChoice, partition: PartitionChoice) -> Iterator[str]:
    if any(column.type.startswith("unsupported") for column in sample.columns):
        yield from _comment(f"{column.name}: {column.type}" for column in sample.columns)
        return
    yield "schema:"
    for column in sample.columns:
        # The day in the partition path is computed from the timestamp, not from a string.
        is_key = column.name in key.columns and column.name != partition.column
        kind = column.key_type if is_key else column.type
        notes = list(column.notes)
        if kind != column.type:
            notes.insert(0, f"every value is {_article(column.type)}; as a key it keeps its text")
        if column.nulls and column.nulls < sample.rows:
            notes.append(f"null in {column.nulls:,} row{'' if column.nulls == 1 else 's'}")
        line = f"  {_flow(column.source_name or column.name)}: {_flow(kind)}"
        comment = "; ".join(notes)
        if len(line) + len(comment) + 4 > _WIDTH:
            yield from _comment((f"{column.name}: {comment}",), indent="  ")
            yield line
        else:
            yield f"{line}  # {comment}" if comment else line
    for name, kind in sample.facts.items():
        yield f"  {_flow(name)}: {_flow(kind)}"


def _ingest_lines(section: Mapping[str, Any]) -> Iterator[str]:
    yield "ingest:"
    for name, value in section.items():
        yield f"  {name}: {_flow(value)}"


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _comment(sentences: Iterable[str], indent: str = "") -> Iterator[str]:
    for sentence in sentences:
        width = _WIDTH - 2 - len(indent)
        lines = textwrap.wrap(_one_line(sentence), width, break_long_words=False, break_on_hyphens=False)
        yield from (f"{indent}# {line}" for line in lines)


def _one_line(text: str) -> str:
    """Return a string without characters that would end a comment."""
    return "".join(character if character.isprintable() else " " for character in text)


def _flow(value: object) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1 << 20, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LETTERS = {"ß": "ss", "ø": "o", "æ": "ae", "ł": "l", "đ": "d", "%": "percent", "#": "number"}


def with_legal_names(sample: Sample) -> Sample:
    """Return a sample with valid column names, and a `select` that renames the columns.

    A column with invalid field names becomes a string, because `select` would have to rebuild it.
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
    """Return a name of ASCII letters, digits and underscores that begins with a letter or an underscore."""
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
    """Return a sample without Hudi's meta columns, which a write computes itself."""
    meta = [column.name for column in sample.columns if column.name in META_COLUMNS]
    if not meta:
        return sample
    note = f"left out, because each commit computes them: {', '.join(meta)}"
    columns = tuple(column for column in sample.columns if column.name not in meta)
    return replace(sample, columns=columns, notes=(*sample.notes, note))


def _without_illegal_fields(column: SampledColumn) -> SampledColumn:
    """Return a column as a string if a nested field has a name that is invalid in a table."""
    illegal = re.search(r"`((?:[^`]|``)+)`", column.type)
    if illegal is None:
        return column
    note = f"JSON as text, because a table cannot have the field name {illegal[1]!r}"
    return replace(column, type="string", key_type="string", notes=(*column.notes, note))
