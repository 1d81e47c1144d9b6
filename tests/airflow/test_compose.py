"""Checks of docker-compose.yml and Dockerfile that need no Docker."""

from __future__ import annotations

import base64
import re
import stat
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from lakehouse_airflow.pools import POOLS

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("spark-master", "spark-worker", "hive-metastore", "s3", "otel-collector", "prometheus", "grafana")
AIRFLOW = ("init", "api-server", "scheduler", "dag-processor", "triggerer")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Read the services with anchors and merges resolved."""
    parsed: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    return parsed


def test_compose_has_all_airflow_components_with_health_checks(services: dict[str, Any]) -> None:
    assert set(services) == {"postgres", "demo-data", *AIRFLOW, *BESIDE}
    # The image of the collector has no program for a health check.
    watched = {"postgres", *AIRFLOW[1:], *BESIDE} - {"otel-collector"}
    assert [name for name in sorted(watched) if "healthcheck" not in services[name]] == []


def test_airflow_components_share_secrets_without_defaults(services: dict[str, Any]) -> None:
    for key in ("AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__API__SECRET_KEY", "AIRFLOW__CORE__FERNET_KEY"):
        values = {services[name]["environment"][key] for name in AIRFLOW}
        assert len(values) == 1
        assert re.fullmatch(r"\$\{LAKEHOUSE_\w+_SECRET:\?[^}]+\}", values.pop())


def test_airflow_components_wait_for_the_migrated_database(services: dict[str, Any]) -> None:
    waiting = [services[name]["depends_on"]["init"]["condition"] for name in AIRFLOW[1:]]
    assert waiting == ["service_completed_successfully"] * 4
    assert services["init"]["environment"]["_AIRFLOW_DB_MIGRATE"] == "true"


def test_init_creates_the_pools_with_the_slots_of_the_environment(services: dict[str, Any]) -> None:
    init = services["init"]
    assert "airflow lakehouse setup" in init["command"][2]
    assert {setting.variable for setting in POOLS} <= set(init["environment"])
    defaults = [re.search(r":-(\d+)", init["environment"][setting.variable]) for setting in POOLS]
    assert [int(found[1]) for found in defaults if found] == [setting.slots for setting in POOLS]


def test_image_installs_the_wheel_in_both_environments(services: dict[str, Any]) -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"pip install [^&]*lakehouse_tables-\*\.whl\)\[spark,", text) is not None
    assert re.search(r"^RUN pip install [^&]*\slakehouse_tables-\*\.whl", text, re.MULTILINE) is not None
    # The entry points of the wheel register the plugin: a plugins folder would register it twice.
    assert "/opt/airflow/plugins" not in text
    volumes = [volume for service in services.values() for volume in service.get("volumes", ())]
    assert [volume for volume in volumes if "plugins" in volume] == []
    # The files that the wheel is built from are in the context of the build.
    context = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = re.findall(r"^COPY --chown=airflow:0 ([^/\n]+?) \S+$", text, re.MULTILINE)
    assert {f"!{name}" for names in copied for name in names.split()} <= set(context)


def test_mounted_volumes_are_declared(services: dict[str, Any]) -> None:
    whole = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    named = {v.split(":")[0] for s in services.values() for v in s.get("volumes", ()) if not v.startswith(".")}
    assert named == set(whole["volumes"])
    assert {c["source"] for s in services.values() for c in s.get("configs", ())} == set(whole["configs"])
    for source in ("otel-collector.yaml", "prometheus.yaml", "alert-rules.yaml", "datasources.yaml", "dashboard.json"):
        text = (ROOT / whole["configs"][source]["file"]).read_text(encoding="utf-8")
        assert isinstance(yaml.safe_load(text), dict)
    ElementTree.fromstring(whole["configs"]["hive-site.xml"]["content"])


def test_images_are_pinned(services: dict[str, Any]) -> None:
    foreign = {service["image"] for service in services.values() if service["image"] != "lakehouse-airflow"}
    assert [image for image in foreign if not re.search(r":[^:]*\d", image)] == []


def test_jobs_use_the_catalog_that_the_database_creates(services: dict[str, Any]) -> None:
    whole = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    name = re.search(r"CREATE DATABASE (\w+)", whole["configs"]["databases.sql"]["content"])
    assert name is not None
    for part in AIRFLOW:
        assert services[part]["environment"]["LAKEHOUSE_CATALOG"].endswith(f"@postgres/{name[1]}")
    assert "postgresql" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_image_has_no_pyspark_in_the_airflow_environment() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    version = re.search(r"^apache-airflow==(\S+)$", (ROOT / "constraints-airflow.txt").read_text(), re.MULTILINE)
    assert version is not None
    assert f"AIRFLOW_VERSION={version[1]}" in text
    assert "LAKEHOUSE_SPARK_HOME=/opt/spark-env" in text
    assert re.search(r"^RUN pip install .*--no-deps .*providers-apache-spark", text, re.MULTILINE) is not None


def test_ports_are_published_on_the_loopback_interface_unless_a_setting_names_another(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(published) >= 6
    assert [port for port in published if not port.startswith("${LAKEHOUSE_BIND:-127.0.0.1}:")] == []


def test_metastore_is_reachable_from_its_own_network_only(services: dict[str, Any]) -> None:
    whole = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    metastore = services["hive-metastore"]
    assert "ports" not in metastore and metastore.get("network_mode") is None
    assert metastore["networks"] == ["metastore"]
    assert whole["networks"]["metastore"] == {"internal": True}
    members = {name for name, service in services.items() if "metastore" in service.get("networks", ())}
    assert members == {*AIRFLOW, "demo-data", "spark-master", "spark-worker", "hive-metastore", "s3", "postgres"}
    assert metastore["environment"]["AWS_ENDPOINT_URL"] == "http://s3:9000", "the metastore checks locations in S3"


def test_passwords_have_no_defaults(services: dict[str, Any]) -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert re.findall(r"\$\{\w*(?:PASSWORD|SECRET)\w*(?:\}|:?-|:?\+)", text) == []
    required = re.compile(r"\$\{LAKEHOUSE_\w+:\?[^}]+\}")
    secret = re.compile(r"PASSWORD|SECRET|FERNET_KEY", re.IGNORECASE)
    variables = [pair for service in services.values() for pair in service.get("environment", {}).items()]
    assert len([value for name, value in variables if secret.search(name)]) > 10
    assert [(name, value) for name, value in variables if secret.search(name) and not required.fullmatch(value)] == []
    urls = [value for _, value in variables if re.search(r"://[^/]*@", value)]
    assert urls and [url for url in urls if not re.search(rf"://\w+:{required.pattern}@", url)] == []


def test_documented_commands_create_an_env_file_with_all_required_names(tmp_path: Path) -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    required = set(re.findall(r"\$\{(\w+):\?", text))
    empty = re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE)
    assert ({name for name, _ in empty}, {value for _, value in empty}) == (required, {""})
    optional = set(re.findall(r"^# (LAKEHOUSE_\w+)=", example, re.MULTILINE))
    assert optional <= set(re.findall(r"\$\{(\w+):-", text))
    lines = "\n".join(line.removeprefix("#   ") for line in example.splitlines() if line.startswith("#   "))
    subprocess.run(["bash", "-ec", lines], cwd=tmp_path, check=True)
    made = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text(encoding="utf-8").splitlines())
    assert set(made) == required and len(set(made.values())) == len(made)
    assert len(base64.urlsafe_b64decode(made.pop("LAKEHOUSE_FERNET_SECRET"))) == 32
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for value in made.values()), "they are parts of URLs"
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    again = subprocess.run(["bash", "-ec", lines], cwd=tmp_path, check=False, capture_output=True)
    assert again.returncode != 0, "the passwords of existing volumes are not overwritten"
