"""The partition-level bucket index as Hudi stores it: one small JSON file for each rule that ever held (DATA-7.3).

    .hoodie/.bucket_index/partition_bucket_index_meta/configs/<instant>.hashing_config

A table is made with that of instant 00000000000000; rescaling buckets is a replacecommit that writes the next. Those
that only older instants need are moved to `archive`, beside `configs`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json

HASHING_CONFIGS = ".hoodie/.bucket_index/partition_bucket_index_meta/configs"
#: The instant of the rule that a table is made with.
INITIAL_INSTANT = "00000000000000"
_SUFFIX = ".hashing_config"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HashingConfig:
    """How partitions get their buckets from `instant` on: `expressions` by `rule`, else `default`."""

    expressions: str
    default: int
    rule: str = "regex"
    instant: str = INITIAL_INSTANT


def hashing_config_path(instant: str) -> str:
    """Return where the rule of `instant` is, relative to the table."""
    return f"{HASHING_CONFIGS}/{instant}{_SUFFIX}"


def hashing_instant(name: str) -> str | None:
    """Return the instant that a file of this bare name is of, None for another file."""
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
    """Return the rule that `data` holds; raise CorruptTableError naming `path` for other bytes."""
    try:
        found = parse_json(data)
        return HashingConfig(
            expressions=str(found["expressions"]),
            default=int(found["defaultBucketNumber"]),
            rule=str(found["rule"]),
            instant=str(found["instant"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptTableError(f"{path} is no rule of buckets: {error!r}", path=path) from error
