"""The policy log: the TTL rules of a table, stored as an append-only log of edits and a base that summarises it.

    .hoodie/.lakehouse/ttl/log/000000000001.json    set    region=*   30 days
                               000000000002.json    remove region=*
    .hoodie/.lakehouse/ttl/base.json                the rules after edit 1

edit   create the file of the next number if it is absent; if it exists, try the number after it
read   the base, then the edits in order until a number is missing
fold   rewrite the base by compare-and-swap after a few dozen edits; if another process does it first, its base stays

Concurrent edits are not lost. Edits are never deleted, so a number is never reused. Otherwise a suspended editor with
an old base could create an edit with a number before the base, which no reader would read. The log is therefore also
the history of the rules. Hudi neither reads nor lists this folder.
"""

from __future__ import annotations

import logging

from lakehouse.core.env import Env
from lakehouse.core.format.ttl_rules import (
    TtlBase,
    TtlEdit,
    apply_edit,
    decode_base,
    decode_edit,
    encode_base,
    encode_edit,
)
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import LakehouseError, UserError, nearest
from lakehouse.model.ttl import TtlRule
from lakehouse.spec.options.ttl import TABLE_RULE

logger = logging.getLogger(__name__)

DIRECTORY = ".hoodie/.lakehouse/ttl"
BASE = f"{DIRECTORY}/base.json"
_FOLD_AFTER = 32


def edit_path(number: int) -> str:
    """Return the path of the edit with this number."""
    return f"{DIRECTORY}/log/{number:012d}.json"


def read_rules(env: Env) -> tuple[TtlRule, ...]:
    """Return the current rules in the order in which they were set."""
    return _read(env)[0].rules


def set_rule(env: Env, rule: TtlRule) -> int:
    """Set a rule, replacing a rule with the same id.

    Return the number of the edit. Raises UserError for a reserved id.
    """
    if rule.id == TABLE_RULE:
        raise UserError(f"{TABLE_RULE!r} is the id of the rule that the options of the table define; choose another id")
    return _append(env, TtlEdit(edit_id=env.ids.uuid(), at_ms=env.clock.now_ms(), rule=rule))


def remove_rule(env: Env, rule_id: str) -> int:
    """Remove a rule; return the number of the edit. Raises UserError if no rule has this id."""
    ids = [rule.id for rule in read_rules(env)]
    if rule_id not in ids:
        listed = ", ".join(ids) or "none"
        raise UserError(
            f"{env.storage.root} has no ttl rule {rule_id!r}; rules: {listed}.{nearest(rule_id, ids)}", rule=rule_id
        )
    return _append(env, TtlEdit(edit_id=env.ids.uuid(), at_ms=env.clock.now_ms(), removed=rule_id))


def fold_rules(env: Env) -> bool:
    """Fold all edits into the base; return False if there were none or another process did it first."""
    base, tag, folded = _read(env)
    if base.up_to == folded:
        return False
    return env.storage.replace_if(BASE, encode_base(base, env.ids.uuid()), tag) is not None


def _append(env: Env, edit: TtlEdit) -> int:
    base, _, folded = _read(env)
    number, data = base.up_to + 1, encode_edit(edit)
    while not env.storage.create(edit_path(number), data, unique=True):
        number += 1
    logger.info("%s: ttl edit %d", env.storage.root, number)
    if number - folded >= _FOLD_AFTER:
        try:
            fold_rules(env)
        except LakehouseError as error:
            # Ignored: the edit is stored, and the base only makes reading faster.
            logger.warning("%s: the ttl rules were not folded yet: %s", env.storage.root, error)
    return number


def _read(env: Env) -> tuple[TtlBase, str | None, int]:
    """Return the rules after all edits, the tag of the base, and the number of the last edit in the base."""
    storage = env.storage
    try:
        data, tag = storage.get_tagged(BASE)
        base = decode_base(data, BASE)
    except NotFoundError:
        base, tag = TtlBase(), None
    rules, number = base.rules, base.up_to
    while True:
        path = edit_path(number + 1)
        try:
            data = storage.get(path)
        except NotFoundError:
            return TtlBase(up_to=number, rules=rules), tag, base.up_to
        rules, number = apply_edit(rules, decode_edit(data, path)), number + 1
