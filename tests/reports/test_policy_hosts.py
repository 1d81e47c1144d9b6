"""Policies, actions and params of runs contain no passwords and name no servers; both come from connections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from lakehouse.errors import SettingError, UserError
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.models import ActionRow, PolicyRow
from lakehouse.platform.fleet_views.actions import actions_page
from lakehouse.platform.fleet_views.paging import Paging
from lakehouse.platform.fleet_views.policies import table_policy_page
from lakehouse.platform.metastore.addresses import metastore_addresses
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.spec.actions import action_spec, check_parameters
from lakehouse.spec.options.sync import METASTORE_URIS, SyncPolicy
from lakehouse.spec.secrets import has_password, refuse_hosts, refuse_secrets
from lakehouse.spec.table.table_spec import parse_spec

TABLE, PASSWORD = "sales.orders", "geheim77"
WITH_PASSWORD = f"thrift://hive:{PASSWORD}@hms:9083"
SPEC = """
table: sales.orders
location: {place}
record_key: [id]
services:
  sync: {{uris: "{uris}"}}
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """Return a catalog with one table."""
    place = str(tmp_path / "orders")
    table = Table.create(place, name=TABLE, record_key="id", table_type="COW")
    table.insert(pa.table({"id": ["a"]}))
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as opened:
        opened.register_table(TABLE, place)
        yield opened


@pytest.mark.parametrize("name", ["uris", METASTORE_URIS])
@pytest.mark.parametrize("value", [WITH_PASSWORD, "thrift://evil.example:9083", "${HMS}", "file:/etc/passwd"])
@pytest.mark.parametrize("scope", [TABLE, "sales"])
def test_policy_refuses_a_metastore_that_is_no_connection(catalog: Catalog, scope: str, value: str, name: str) -> None:
    """apache/gravitino#1658, apache/druid#11405: passwords in stored settings are shown to all users."""
    with pytest.raises(SettingError) as refused:
        catalog.set_policy(scope, "sync", {name: value})
    assert PASSWORD not in str(refused.value) and "airflow:<connection id>" in str(refused.value)
    catalog.set_policy(scope, "sync", {name: "airflow:hms"})
    assert catalog.settings(TABLE, "sync").options[METASTORE_URIS] == "airflow:hms"


def test_passwords_that_an_earlier_version_stored_are_hidden_from_viewers(catalog: Catalog) -> None:
    """apache/hive#5709: properties with the address and the password of a database are shown in a plan."""
    settings = {"uris": WITH_PASSWORD, "enabled": True}
    with catalog.database.session() as session:
        for name in ("", "orders"):
            policy = PolicyRow(namespace="sales", name=name, pattern="", service="sync", settings=settings, version=1)
            policy.updated_ms, policy.author = 1, "ada"
            session.add(policy)
        row = ActionRow(subject=TABLE, action="edit_policy", author="ada", created_ms=1, state="done", result={})
        row.parameters = {"service": "sync", "settings": settings}
        session.add(row)
    with catalog.database.reading() as session:
        shown = json.dumps(table_policy_page(session, TABLE).to_mapping())
        listed = json.dumps(actions_page(session, Paging(), 2).to_mapping())
    for text in (shown, listed):
        assert PASSWORD not in text and "thrift://hive:***@hms:9083" in text


def test_action_with_a_password_is_refused_before_it_is_recorded() -> None:
    """open-metadata/OpenMetadata#12678: a password is shown in plain text on a page."""
    for settings in ({"uris": WITH_PASSWORD}, {"uris": "thrift://hms:9083?password=x1"}):
        with pytest.raises(UserError, match="URL with a password"):
            check_parameters(action_spec("edit_policy"), {"service": "sync", "settings": settings})
    with pytest.raises(UserError, match="URL with a password"):
        check_parameters(action_spec("savepoint"), {"comment": f"before {WITH_PASSWORD}"})
    check_parameters(action_spec("savepoint"), {"comment": "see https://wiki.example/a:b@c and ask@example.com"})


def test_spec_refuses_a_password_in_any_url_and_accepts_references(tmp_path: Path) -> None:
    """apache/gravitino#4384: the key of an option does not say that its URL has a password."""
    with pytest.raises(UserError) as refused:
        parse_spec(SPEC.format(place=tmp_path, uris=WITH_PASSWORD), source="orders.yaml")
    assert PASSWORD not in str(refused.value)
    for uris in (
        "thrift://hms:9083",
        "thrift://one:9083,thrift://two:9083",
        "airflow:hms",
        "thrift://me:${PW}@hms:9083",
    ):
        parse_spec(SPEC.format(place=tmp_path, uris=uris), source="orders.yaml")
    urls = {
        "jdbc:mysql://u:p@h/d": True,
        "https://h/a?token=x": True,
        "s3://bucket/a:b@c": False,
        "https://registry:8081/subjects/a@b": False,
        "a:b@c": False,
        "thrift://u@h:1": False,
    }
    assert {url: has_password(url) for url in urls} == urls


HOSTS: dict[str, Any] = {
    METASTORE_URIS: "thrift://evil.example:9083",
    "hoodie.write.lock.zookeeper.url": "evil.example:2181",
    "hoodie.write.lock.hivemetastore.uris": "thrift://evil.example:9083",
    "lakehouse.lock.sqlalchemy.url": "postgresql://evil.example/x",
    "fs.s3a.endpoint": "http://evil.example",
    "AWS_ENDPOINT_URL": "http://evil.example",
}


@pytest.mark.parametrize("key", HOSTS)
def test_params_of_a_run_refuse_an_option_that_names_a_server(key: str) -> None:
    """apache/gravitino#1658: the place of a secret is a connection, which its owner controls."""
    with pytest.raises(SettingError, match="names a server"):
        refuse_hosts({key: HOSTS[key]}, "the run's params")
    refuse_hosts({key: "airflow:hms"}, "the run's params")
    refuse_hosts({key: "", "hoodie.clean.commits.retained": "3"}, "the run's params")
    refuse_secrets({key: "airflow:hms"}, "the run's params")


def test_addresses_of_a_metastore_are_those_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """open-metadata/OpenMetadata#12678: the host and the port of a connection are used, its password is not shown."""
    fields = {"conn_type": "hive_metastore", "host": "one,two:9084", "port": 9093, "password": PASSWORD}
    environ = {"AIRFLOW_CONN_HMS": json.dumps(fields), "AIRFLOW_CONN_URL": "thrift://three:9085", "HOST": "four"}
    assert metastore_addresses("airflow:hms", environ) == "thrift://one:9093,thrift://two:9084"
    assert metastore_addresses("airflow:url", environ) == "thrift://three:9085"
    assert metastore_addresses("thrift://${HOST}:1", environ) == "thrift://four:1"
    with pytest.raises(SettingError, match="AIRFLOW_CONN_MISSING"):
        metastore_addresses("airflow:missing", environ)
    with pytest.raises(SettingError, match="has no host"):
        metastore_addresses("airflow:empty", {"AIRFLOW_CONN_EMPTY": '{"conn_type": "hive_metastore"}'})
    monkeypatch.setenv("AIRFLOW_CONN_URL", "thrift://three:9085")
    assert open_metastore(SyncPolicy(uris="airflow:url")).name == "thrift://three:9085"
