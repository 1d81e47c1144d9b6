"""Configuration files of the partition-level bucket index: one JSON file for each change of the rule (DATA-7.3).

    .hoodie/.bucket_index/partition_bucket_index_meta/configs/<instant>.hashing_config

A new table has the file of instant 00000000000000. A replacecommit that rescales buckets writes the next one. Files
that only older instants need are moved to the directory `archive` next to `configs`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json

HASHING_CONFIGS = ".hoodie/.bucket_index/partition_bucket_index_meta/configs"
#: The instant of the first configuration.
INITIAL_INSTANT = "00000000000000"
_SUFFIX = ".hashing_config"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HashingConfig:
    """The bucket counts from `instant` on: the count of the matching rule in `expressions`, otherwise `default`."""

    expressions: str
    default: int
    rule: str = "regex"
    instant: str = INITIAL_INSTANT


def hashing_config_path(instant: str) -> str:
    """Return the path of the configuration for `instant`, relative to the table."""
    return f"{HASHING_CONFIGS}/{instant}{_SUFFIX}"


def hashing_instant(name: str) -> str | None:
    """Return the instant in the name of a configuration file, or None for any other name."""
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else None


def encode_hashing_config(config: HashingConfig) -> bytes:
    """Return the bytes that Hudi writes."""
    fields = {
        "expressions": config.expressions,
        "defaultBucketNumber": config.default,
        "rule": config.rule,
        "version": _VERSION,
        "instant": config.instant,
    }
    lines = ",\n".join(f"  {json.dumps(k)} : {json.dumps(v, ensure_ascii=False)}" for k, v in fields.items())
    return f"{{\n{lines}\n}}".encode()


def decode_hashing_config(data: bytes, path: str) -> HashingConfig:
    """Decode a configuration file; raise CorruptTableError with `path` if it is invalid."""
    try:
        document = parse_json(data)
        return HashingConfig(
            expressions=str(document["expressions"]),
            default=int(document["defaultBucketNumber"]),
            rule=str(document["rule"]),
            instant=str(document["instant"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptTableError(f"{path} is not a bucket index configuration: {error!r}", path=path) from error
