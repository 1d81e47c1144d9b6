"""The page of the REST API, from the OpenAPI document that `docs/openapi.py` writes in Airflow's environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.generators.markdown import code, page, table

OPENAPI = Path(__file__).resolve().parents[1] / "reference" / "openapi.json"
_INTRO = """\
The endpoints are below `/lakehouse` of Airflow's API server. Each one needs a login: the header
`Authorization: Bearer <token>` with a token from `POST /auth/token`, or the cookie of a session. Reading needs the
permission to read DAGs. An action needs the permission to edit a DAG: `services.<service>` for an action on a service,
`lakehouse.actions` for others. [Pages](../airflow/pages.md) shows how to use the API.

The OpenAPI document is at `/lakehouse/api/v1/openapi.json`, and in the repository as `docs/reference/openapi.json`. The
results are documents of [Reports, events and results](contracts.md) with their `version`. `stale` is in a result if the
catalog did not answer: the time and the error; `as_of_ms` is the time of a read of a table.

| status | code | meaning |
| --- | --- | --- |
| 400 | `refused`, `invalid_parameter` | the request is wrong; the text says what to do |
| 401 | `not_logged_in` | no login |
| 403 | `forbidden` | the user lacks the permission, or a change came from another site |
| 404 | `unknown_table`, `not_found` | there is no such table or address |
| 409 | `conflict` | the DAG `lakehouse.actions` is missing |
| 411, 413 | `length_required`, `too_long` | the body of an action has no length, or more than 256 kB |
| 422 | `invalid_parameter` | a parameter has a wrong type or range |
| 429 | `too_many_requests` | the user has as many requests as one user may; `Retry-After` says when to try again |
| 503 | `unavailable` | the catalog or a table does not answer; the same request may succeed later |
| 503 | `busy` | too many requests wait; `Retry-After` says when to try again |"""


def rest_page() -> str:
    """Return the page with all endpoints."""
    document = json.loads(OPENAPI.read_text(encoding="utf-8"))
    parts = [_INTRO]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _endpoint(path, method, operation)
    return page("REST API", "docs/reference/openapi.json", *parts)


def _endpoint(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {method.upper()} {path}"
    yield f"{operation['summary']}. {operation.get('description', '')}".strip()
    result = _result(operation)
    if result:
        yield f"Result: [{result}](contracts.md#{result.lower()})."
    rows = []
    for given in operation.get("parameters", ()):
        rows.append((code(given["name"]), given["in"], _type(given["schema"]), given.get("description", "")))
    if "requestBody" in operation:
        rows.append((code("action"), "body", "text", "Kind of the action, such as `request_service`."))
        rows.append((code("parameters"), "body", "object", "Parameters of the action."))
    if rows:
        yield table(("parameter", "in", "type", "meaning"), rows)


def _result(operation: Mapping[str, Any]) -> str:
    content = operation["responses"]["200"].get("content", {}).get("application/json", {})
    return str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]


def _type(schema: Mapping[str, Any]) -> str:
    kinds = [schema, *schema.get("anyOf", ())]
    found = [str(kind.get("type") or str(kind.get("$ref", "")).rpartition("/")[2]) for kind in kinds]
    names = [name for name in found if name not in ("", "null")]
    default = schema.get("default")
    return f"{' or '.join(names)}{f', default `{default}`' if default not in (None, '') else ''}"
