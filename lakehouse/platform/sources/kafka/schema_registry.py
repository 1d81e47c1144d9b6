"""Read schemas from a schema registry.

byte 0 | schema id, 4 bytes, big-endian | the record
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import RetryableError, UserError

MAGIC, HEADER = 0, 5
_TIMEOUT_S = 30.0
#: A binary array has less. Arrow 26 overflows if a slice with an even number of values has no end.
_MOST_BYTES = (1 << 31) - 1
_NOT_FOUND, _DENIED = 404, (401, 403)


class BadMessageError(Exception):
    """A message that cannot be decoded."""


def schema_ids(values: pa.Array) -> Any:
    """Return the schema id of each value; -1 if a value has no schema id."""
    lengths = np.asarray(pc.binary_length(values))
    has_id = lengths > HEADER - 1
    heads = pc.binary_slice(values.filter(pa.array(has_id)), 0, HEADER)
    data = np.frombuffer(b"".join(heads.to_pylist()), np.uint8).reshape(-1, HEADER)
    numbers = data[:, 1:].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    ids = np.full(len(values), -1, np.int64)
    ids[has_id] = np.where(data[:, 0] == MAGIC, numbers, -1)
    return ids


def without_start(values: pa.Array, size: int) -> pa.Array:
    """Return values without their first `size` bytes."""
    return pc.binary_slice(values, size, _MOST_BYTES)


def fetched_schema(registry: Mapping[str, str], schema_id: int, *, kind: str, query: str = "") -> dict[str, Any]:
    """Return the registry's response for a schema of this kind.

    Raises BadMessageError for an id that the registry does not have, UserError for a schema of another kind.
    """
    try:
        answer = registry_answer(registry, f"schemas/ids/{schema_id}{query}")
    except FileNotFoundError as error:
        raise BadMessageError(f"its schema id {schema_id} is not in the registry") from error
    schema_type = answer.get("schemaType", "AVRO")
    if schema_type != kind:
        raise UserError(f"schema {schema_id} of the registry is {schema_type}, and the spec says {kind}")
    return answer


def registry_answer(registry: Mapping[str, str], path: str) -> dict[str, Any]:
    """Return the JSON at a path; raise FileNotFoundError if the registry does not have it."""
    url = f"{registry['url'].rstrip('/')}/{path}"
    request = Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json"})
    if registry.get("basic.auth.user.info"):
        login = base64.b64encode(registry["basic.auth.user.info"].encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as reply:
            answer = json.loads(reply.read())
    except HTTPError as error:
        if error.code == _NOT_FOUND:
            raise FileNotFoundError(url) from error
        if error.code in _DENIED:
            raise UserError(f"the schema registry refuses the access to {url}: {error.code}") from error
        raise RetryableError(f"the schema registry answers {error.code} to {url}") from error
    except (URLError, OSError, ValueError) as error:
        raise RetryableError(f"the schema registry does not answer to {url}: {error}") from error
    if not isinstance(answer, dict):
        raise RetryableError(f"the schema registry answers no object to {url}: {str(answer)[:100]}")
    return answer
