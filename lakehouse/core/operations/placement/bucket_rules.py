"""Determine the bucket counts of a table's partitions, from its properties, its rules on storage and the options.

The properties contain the bucket counts with which the table was created. A rule file on storage overrides them. When
Hudi changes the bucket counts of partitions, it writes a rule file with a replacecommit, and does not update the
properties.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.core.format.hashing_config import (
    HASHING_CONFIGS,
    HashingConfig,
    decode_hashing_config,
    encode_hashing_config,
    hashing_config_path,
    hashing_instant,
)
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING
from lakehouse.model.instant import Action, Instant
from lakehouse.spec.options.index import IndexPolicy
from lakehouse.spec.table.bucket_rules import (
    EXPRESSIONS,
    HASH_FIELD,
    MADE_WITH,
    NUM_BUCKETS,
    REGEX,
    BucketRules,
    parse_rules,
)


def bucket_rules(table: LoadedTable, policy: IndexPolicy) -> BucketRules:
    """Return the bucket counts that a write must use.

    Raises UserError if the options contradict the bucket counts of the table.
    """
    check_hash_fields(table, policy)
    made_with, requested = _made_with(table.config.raw), BucketRules(policy.buckets, parse_rules(policy.expressions))
    stored = _stored(table)
    if stored is None and made_with is not None:
        # The creation of the table may have been interrupted before it wrote the rule file that Hudi reads.
        _store(table.env.storage, made_with)
    rules = stored or made_with or requested
    if rules.default < 1:
        raise UserError(f"hoodie.index.type=BUCKET needs {NUM_BUCKETS}, at least 1")
    _refuse_others(table.env.storage.root, requested, rules, made_with)
    hashed = policy.hash_fields if made_with is None else table.config.raw.get(HASH_FIELD, "")
    if hashed != policy.hash_fields:
        raise _contradiction(table.env.storage.root, HASH_FIELD, policy.hash_fields, hashed)
    return rules


def readable_bucket_rules(table: LoadedTable, policy: IndexPolicy) -> BucketRules | None:
    """Return the bucket counts that the table's files should have, None if the table has no bucket index.

    Writes nothing. The options are used only if the table has neither a rule file nor properties.
    """
    if not policy.index_type.hashes_keys or policy.index_type.has_ring:
        return None
    rules = _stored(table) or _made_with(table.config.raw)
    if rules is not None or policy.buckets < 1:
        return rules
    return BucketRules(policy.buckets, parse_rules(policy.expressions))


def store_bucket_rules(storage: Storage, properties: Mapping[str, str]) -> None:
    """Write the rule file for the properties of a new table, unless it exists."""
    made_with = _made_with(properties)
    if made_with is not None:
        _store(storage, made_with)


def store_changed_rules(storage: Storage, instant: str, rules: BucketRules) -> None:
    """Write the rule file of a resize. It becomes valid when the resize is completed."""
    config = HashingConfig(expressions=rules.expressions, default=rules.default, instant=instant)
    storage.put(hashing_config_path(instant), encode_hashing_config(config))


def changed_bucket_rules(storage: Storage, instant: Instant) -> bool:
    """Return whether a completed instant changed bucket counts.

    Rows that were staged before it are in wrong buckets.
    """
    if instant.action is not Action.REPLACECOMMIT:
        return False
    try:
        storage.get(hashing_config_path(instant.requested))
    except NotFoundError:
        return False
    return True


def delete_bucket_rules(storage: Storage, instant: str) -> None:
    """Delete the rule file of `instant`, which is rolled back; without its instant the rule would count as valid."""
    delete_leftovers(storage, [hashing_config_path(instant)])


def _made_with(properties: Mapping[str, str]) -> BucketRules | None:
    """Return the bucket counts in the table's properties, or None for tables of Hudi, which stores none there."""
    count = properties.get(NUM_BUCKETS, "").strip()
    return BucketRules(int(count), parse_rules(properties.get(MADE_WITH, ""))) if count.isdecimal() else None


def _store(storage: Storage, rules: BucketRules) -> None:
    if rules.rules:
        config = HashingConfig(expressions=rules.expressions, default=rules.default)
        storage.create(hashing_config_path(config.instant), encode_hashing_config(config))


def _stored(table: LoadedTable) -> BucketRules | None:
    """Return the newest rule file whose instant is not pending, or None."""
    if not table.config.is_partitioned:
        return None
    pending = {instant.requested for instant in table.timeline.where(pending=True)}
    files, _ = table.env.storage.list_dir(HASHING_CONFIGS)
    paths = {hashing_instant(file.name): file.path for file in files}
    instants = sorted(instant for instant in paths if instant is not None and instant not in pending)
    if not instants:
        return None
    path = paths[instants[-1]]
    config = decode_hashing_config(table.env.storage.get(path), f"{table.env.storage.root}/{path}")
    if config.rule.lower() != REGEX:
        raise UnsupportedError(
            f"{table.env.storage.root}: bucket rules of type {config.rule} are unsupported, {REGEX} is"
        )
    return BucketRules(config.default, parse_rules(config.expressions))


def _refuse_others(root: str, requested: BucketRules, rules: BucketRules, made_with: BucketRules | None) -> None:
    """Raise UserError for options that contradict the table, because a write would not find stored keys with them."""
    # Options that are not set get the values of the properties, or no value.
    unset = made_with or BucketRules(0)
    for key, wanted, has, default in (
        (NUM_BUCKETS, requested.default, rules.default, unset.default),
        (EXPRESSIONS, requested.expressions, rules.expressions, unset.expressions),
    ):
        if wanted not in (has, default):
            raise _contradiction(root, key, wanted, has)


def check_hash_fields(table: LoadedTable, policy: IndexPolicy) -> None:
    """Raise UserError for hash fields that are not record key fields."""
    unknown = set(filter(None, policy.hash_fields.split(","))) - set(table.config.keys.record_key_fields)
    if unknown:
        raise UserError(f"{HASH_FIELD}: {sorted(unknown)} are not among the record key fields")


def check_ring(table: LoadedTable, policy: IndexPolicy) -> None:
    """Raise UserError for a table or options that consistent hashing does not allow."""
    check_hash_fields(table, policy)
    root, stored = table.env.storage.root, table.config.raw
    if not table.config.is_merge_on_read:
        raise UserError(
            f"{root}: {BUCKET_ENGINE}={CONSISTENT_HASHING} needs a merge-on-read table, because rows are written to "
            "logs while buckets split and merge, and this table is copy-on-write; use the engine SIMPLE",
            option=BUCKET_ENGINE,
        )
    hashed = stored.get(HASH_FIELD, policy.hash_fields)
    if NUM_BUCKETS in stored and hashed != policy.hash_fields:
        raise _contradiction(root, HASH_FIELD, policy.hash_fields, hashed)


def _contradiction(root: str, key: str, wanted: object, has: object) -> UserError:
    return UserError(
        f"{root}: option {key}={wanted!r} contradicts the table, whose rows are stored by {has!r} and would not be "
        "found; leave the option out: the buckets of a table are fixed when it is created",
        option=key,
    )
