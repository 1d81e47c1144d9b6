"""The declared keys of a table spec are those that the parser reads, with their defaults, choices and examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from docs.generators.spec_file import SECTIONS
from lakehouse.errors import UserError
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

BASE = {"table": "orders", "location": "lake/orders", "record_key": "order_id", "partition_by": "day"}
DATABASES = ("mysql", "postgres")
PUBLISHED = {"database": "sales"}
KEYS = [pytest.param(title, key, id=f"{title}-{key.name}") for title, (_, keys) in SECTIONS.items() for key in keys]


def document(title: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole spec whose section `title` has these values."""
    if title == "Table":
        return {**{name: value for name, value in BASE.items() if name != "partition_by"}, **section}
    if title == "partition_by":
        return {**BASE, "partition_by": {"day": dict(section)}}
    if title == "ingest":
        return {**BASE, "ingest": {"path": "landing", **section}}
    if title.startswith("ingest, source: "):
        required = {key.name: yaml.safe_load(key.example) for key in SECTIONS[title][1] if key.required}
        kind = title.removeprefix("ingest, source: ")
        # Several tables of a database have the keys of their sources, and a partition column needs a global index.
        dropped = {"partition_by"} | ({"record_key"} if "into" in section else set())
        own = BASE if kind not in DATABASES else {name: text for name, text in BASE.items() if name not in dropped}
        return {**own, "ingest": {"source": kind, **required, **section}}
    if title == "ingest.transform":
        return {**BASE, "ingest": {"path": "landing", "transform": dict(section)}}
    if title == "ingest.deduplicate":
        whole = {"within": "1h", "time": "at", **section}
        return {**BASE, "ingest": {"path": "landing", "operation": "insert", "deduplicate": whole}}
    if title == "services":
        return {**BASE, "services": {"clean": dict(section)}}
    if title == "services.publish":
        return {**BASE, "services": {"publish": {**PUBLISHED, **section}}}
    return {**BASE, title: dict(section)}


def parsed(title: str, section: Mapping[str, Any]) -> TableSpec:
    return parse_spec(yaml.safe_dump(document(title, section)), source="x.yaml")


def needed(key: SpecKey) -> dict[str, Any]:
    values = yaml.safe_load(key.needs) if key.needs else {}
    assert isinstance(values, dict)
    return values


def values_of(title: str, spec: TableSpec) -> Any:
    """Return what a section becomes; publication is parsed on its own, because a spec stores its text."""
    return spec.publication() if title == "services.publish" else spec


@pytest.mark.parametrize(("title", "key"), KEYS)
def test_example_of_a_key_is_accepted_and_has_an_effect(title: str, key: SpecKey) -> None:
    with_key = values_of(title, parsed(title, {**needed(key), key.name: yaml.safe_load(key.example)}))
    if key.required or key.example == key.default:
        return
    try:
        without = values_of(title, parsed(title, needed(key)))
    except UserError:
        # The other keys of the example need this one.
        return
    assert with_key != without


@pytest.mark.parametrize(("title", "key"), [param for param in KEYS if param.values[1].default])
def test_default_of_a_key_is_the_value_that_applies_without_it(title: str, key: SpecKey) -> None:
    section = {name: value for name, value in needed(key).items() if name != key.name}
    explicit = parsed(title, {**section, key.name: yaml.safe_load(key.default)})
    implicit = parsed(title, section)
    if title == "services":
        assert explicit.call_options() == implicit.call_options()
        return
    assert values_of(title, explicit) == values_of(title, implicit)


@pytest.mark.parametrize(("title", "key"), [param for param in KEYS if param.values[1].choices])
def test_choices_of_a_key_are_those_that_the_parser_accepts(title: str, key: SpecKey) -> None:
    with pytest.raises(UserError) as refused:
        parsed(title, {**needed(key), key.name: "no_such_choice"})
    assert "is not one of" in refused.value.message or "unknown" in refused.value.message
    assert [choice for choice in key.choices if choice not in refused.value.message] == []
    for choice in key.choices:
        try:
            parsed(title, {**needed(key), key.name: choice})
        except UserError as error:
            # Another key may be missing for this choice; the choice itself is known.
            assert repr(choice) not in error.message or "is not one of" not in error.message


@pytest.mark.parametrize("title", SECTIONS)
def test_unknown_key_of_a_section_is_refused_with_all_declared_keys(title: str) -> None:
    with pytest.raises(UserError) as refused:
        parsed(title, {"no_such_key": 1})
    names = [key.name for key in SECTIONS[title][1]]
    assert [name for name in names if name not in refused.value.message] == []


def test_required_keys_are_those_that_the_parser_requires() -> None:
    required = [(title, key.name) for title, (_, keys) in SECTIONS.items() for key in keys if key.required]
    for title, name in required:
        whole = document(title, {})
        holders = {"Table": whole, "services.publish": whole.get("services", {}).get("publish")}
        holders["ingest.deduplicate"] = whole.get("ingest", {}).get("deduplicate")
        del holders.get(title, whole.get("ingest"))[name]
        with pytest.raises(UserError, match=name):
            parse_spec(yaml.safe_dump(whole), source="x.yaml")
    assert len(required) >= 5
