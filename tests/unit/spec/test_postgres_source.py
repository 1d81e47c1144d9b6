"""Settings of the source `postgres`: names of slots and publications, and its connection."""

from __future__ import annotations

import json

import pytest

from lakehouse.errors import SettingError, UserError
from lakehouse.spec.sources.postgres_connection import postgres_access
from lakehouse.spec.sources.postgres_source import PostgresSourceSpec
from lakehouse.spec.table.table_spec import parse_spec

VARIABLE = "AIRFLOW_CONN_POSTGRES_DEFAULT"


def source(table: str = "shop", **settings: str) -> PostgresSourceSpec:
    """Return the source of a spec."""
    value = {"source": "postgres", "tables": "public.orders", **settings}
    spec = parse_spec(
        json.dumps({"table": table, "location": "lake", "record_key": "id", "ingest": value}), source="shop.yaml"
    )
    assert spec.ingest is not None and isinstance(spec.ingest.source, PostgresSourceSpec)
    return spec.ingest.source


def test_names_of_slot_and_publication_follow_from_the_table() -> None:
    found = source()
    assert (found.slot_of("Sales.Orders-2"), found.publication_of("shop")) == (
        "lakehouse_sales_orders_2",
        "lakehouse_shop",
    )
    assert len(found.slot_of("x" * 99)) < 63
    named = source(slot="other", publication="Own Name")
    assert (named.slot_of("shop"), named.publication_of("shop")) == ("other", "Own Name")
    assert source(slot="other").publication_of("shop") == "other"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("slot", "My-Slot", "lower-case letters"), ("publication", 'a"b', "is not a name of at most")],
)
def test_names_that_the_server_refuses_are_errors_of_the_spec(name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"shop\.yaml:1: {name}: .*{message}"):
        source(**{name: text})


def test_connection_is_read_from_json_or_a_url_and_hides_its_password() -> None:
    value = {
        "host": "db",
        "port": 5433,
        "login": "me",
        "password": "p'w d\\@/x",
        "schema": "shop",
        "extra": {"sslmode": "require", "sslrootcert": "/ca.pem", "other": "x"},
    }
    found = postgres_access("postgres_default", {VARIABLE: json.dumps(value)})
    url = "postgresql+psycopg://me:p%27w%20d%5C%40%2Fx@db:5433/shop?sslmode=require&sslrootcert=/ca.pem"
    assert postgres_access("postgres_default", {VARIABLE: url}) == found
    assert found.password not in repr(found) and found.address == "db:5433/shop"
    assert found.parameters["sslmode"] == "require" and found.parameters["password"] == "p'w d\\@/x"
    assert "TimeZone=UTC" in found.parameters["options"]


@pytest.mark.parametrize("missing", ["host", "login", "schema"])
def test_connection_without_host_login_or_database_is_named(missing: str) -> None:
    value = {"host": "db", "login": "me", "schema": "shop"}
    del value[missing]
    with pytest.raises(SettingError, match=f"connection 'postgres_default' has no {missing}"):
        postgres_access("postgres_default", {VARIABLE: json.dumps(value)})
