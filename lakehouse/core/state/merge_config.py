"""Parse and write the merge properties of hoodie.properties as a MergeRule (DATA-5.1, TL-2.3).

Tables up to version 8 have a payload class; version 9 has a property for each setting. Known payload classes are
translated. The rule of an unknown class is refused when records have to be merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakehouse.core.layout.protocol import TableLayout
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.column_groups import GROUPS_PROPERTY, groups_text, parse_groups
from lakehouse.model.merge import (
    BY_PAYLOAD,
    GROUP_MERGER,
    MERGER_PROPERTY,
    STRATEGIES,
    UNAVAILABLE,
    MergeMode,
    MergeRule,
    PartialMode,
    merge_strategy_id,
)

_COMMIT, _EVENT = MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING
_MODEL = "org.apache.hudi.common.model."
_PROPERTY = "hoodie.record.merge.property."
_DELETE_FIELD, _DELETE_MARKER = "hoodie.payload.delete.field", "hoodie.payload.delete.marker"
# Names of the same property in Hudi 1.2, in hudi-rs, and in early builds of Hudi 1.1.
_UNAVAILABLE_WRITTEN = ("hoodie.write.partial.update.unavailable.value", "partial.update.unavailable.value")
_UNAVAILABLE_KEYS = (*_UNAVAILABLE_WRITTEN, "hoodie.write.partial.update.custom.marker")
_PARTIAL_NAMES = {**PartialMode.__members__, "IGNORE_MARKERS": PartialMode.FILL_UNAVAILABLE}
_MODES = {
    f"{_MODEL}DefaultHoodieRecordPayload": _EVENT,
    f"{_MODEL}EventTimeAvroPayload": _EVENT,
    f"{_MODEL}OverwriteWithLatestAvroPayload": _COMMIT,
}
_DMS = MergeRule(mode=_COMMIT, delete_field="Op", delete_marker="D")
_DEBEZIUM = MergeRule(mode=_EVENT, delete_field="_change_operation_type", delete_marker="d")
# Payload classes of mode CUSTOM with known semantics. A rule without ordering columns uses the table's columns.
_PAYLOADS = {
    f"{_MODEL}OverwriteNonDefaultsWithLatestAvroPayload": MergeRule(
        mode=_COMMIT, partial=PartialMode.IGNORE_DEFAULTS, combines_whole=True
    ),
    f"{_MODEL}PartialUpdateAvroPayload": MergeRule(mode=_EVENT, partial=PartialMode.IGNORE_DEFAULTS),
    f"{_MODEL}AWSDmsAvroPayload": _DMS,
    "org.apache.hudi.payload.AWSDmsAvroPayload": _DMS,
    f"{_MODEL}debezium.PostgresDebeziumAvroPayload": replace(
        _DEBEZIUM, ordering=("_event_lsn",), partial=PartialMode.FILL_UNAVAILABLE
    ),
    f"{_MODEL}debezium.MySqlDebeziumAvroPayload": replace(_DEBEZIUM, ordering=("_event_seq",), by_parts=True),
    **{payload: MergeRule(mode=mode) for payload, mode in _MODES.items()},
}
#: The ordering columns of a payload class in tables with a property for each setting.
_LEGACY_ORDERING = {
    f"{_MODEL}debezium.MySqlDebeziumAvroPayload": ("_event_bin_file", "_event_pos"),
    f"{_MODEL}debezium.PostgresDebeziumAvroPayload": ("_event_lsn",),
}
PAYLOAD_PROPERTY, LEGACY_PAYLOAD_PROPERTY = "hoodie.compaction.payload.class", "hoodie.table.legacy.payload.class"


def ordering_fields(raw: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ordering columns that the properties `raw` of any table version declare."""
    text = raw.get("hoodie.table.ordering.fields") or raw.get("hoodie.table.precombine.field") or ""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def declared_mode(raw: Mapping[str, str], layout: TableLayout) -> MergeMode:
    """Return the merge mode that the properties `raw` of a table with `layout` declare or imply (DATA-5.1).

    If no mode is declared, version 8 uses the strategy id before the payload class, and the other versions use the
    payload class first. If neither is declared, a table with ordering columns is merged by event time.
    """
    mode = raw.get("hoodie.record.merge.mode", "").upper()
    if mode:
        return MergeMode(mode) if mode in MergeMode.__members__ else MergeMode.CUSTOM
    payload, strategy = _payload(raw), _strategy(raw)
    by_payload = _MODES.get(payload, MergeMode.CUSTOM) if payload else None
    by_strategy = STRATEGIES.get(strategy, MergeMode.CUSTOM) if strategy else None
    implied = (by_strategy or by_payload) if layout.prefers_strategy else (by_payload or by_strategy)
    return implied or (_EVENT if ordering_fields(raw) else _COMMIT)


def parse_merge_rule(raw: Mapping[str, str], layout: TableLayout) -> MergeRule:
    """Return the rule that the properties `raw` of a table with `layout` declare.

    A rule that this package cannot execute is returned with its `foreign` part, and refused when records are merged.
    Raises UserError for a delete field without marker or a marker without field.
    """
    mode = declared_mode(raw, layout)
    if mode is not MergeMode.CUSTOM:
        rule = MergeRule(mode=mode)
    elif raw.get(GROUPS_PROPERTY):
        rule = MergeRule(mode=mode, merger=GROUP_MERGER, groups=parse_groups(raw[GROUPS_PROPERTY]))
    elif raw.get(MERGER_PROPERTY):
        rule = MergeRule(mode=mode, merger=raw[MERGER_PROPERTY])
    else:
        rule = _rule_of_payload(raw, layout)
    if not rule.ordering:
        rule = replace(rule, ordering=ordering_fields(raw))
    if layout.has_merge_properties and mode is not MergeMode.CUSTOM:
        rule = _with_partial_mode(rule, raw)
    return _with_delete_marker(rule, raw)


def payload_rule(payload: str, ordering: tuple[str, ...], layout: TableLayout) -> MergeRule:
    """Return the merge rule of a new table with `layout` that declares a payload class, as Hudi 1.2 creates it.

    Raises:
        UnsupportedError: The class cannot be translated; the message has the way out.
        UserError: The class orders by other columns than `ordering`, or it needs an ordering column.
    """
    rule = _PAYLOADS.get(payload)
    if rule is None:
        full = next((name for name in _PAYLOADS if name.rpartition(".")[2] == payload), None)
        if full is not None:
            raise UserError(f"payload class {payload} needs its package: write {full}", payload=payload)
        raise UnsupportedError(
            f"payload class {payload} is code of the JVM that cannot run here. Payload classes with known semantics "
            f"are {', '.join(sorted({name.rpartition('.')[2] for name in _PAYLOADS}))}. Write the merge as a Python "
            "function: Table.create(merger='package.module:function')",
            payload=payload,
        )
    own = rule.ordering
    if layout.has_merge_properties:
        own = _LEGACY_ORDERING.get(payload, ())
        rule = replace(rule, by_parts=False, combines_whole=False)
    if own and ordering not in ((), own, rule.ordering):
        raise UserError(
            f"payload class {payload} orders versions by {', '.join(own)}, not by {', '.join(ordering)}; remove the "
            "ordering column"
        )
    rule = replace(rule, ordering=own or ordering)
    if rule.mode is _EVENT and not rule.ordering:
        raise UserError(f"payload class {payload} needs an ordering column")
    return rule


def payload_properties(payload: str, rule: MergeRule, layout: TableLayout) -> dict[str, str]:
    """Return the merge properties of a new table with the `payload_rule` of a payload class."""
    if layout.has_merge_properties:
        return {**merge_properties(rule, layout), LEGACY_PAYLOAD_PROPERTY: payload}
    mode = _MODES.get(payload, MergeMode.CUSTOM)
    strategy = next((key for key, merged in STRATEGIES.items() if merged is mode), BY_PAYLOAD)
    raw = {PAYLOAD_PROPERTY: payload}
    if layout.has_merge_modes:
        raw |= {"hoodie.record.merge.mode": mode.value, "hoodie.record.merge.strategy.id": strategy}
    if rule.ordering:
        raw[layout.ordering_property] = ",".join(rule.ordering)
    return raw


def merge_properties(rule: MergeRule, layout: TableLayout) -> dict[str, str]:
    """Return the merge properties for a new table with `layout`; `parse_merge_rule` is the inverse.

    Raises:
        UnsupportedError: The table version has no property for a part of `rule`.
        UserError: The mode is CUSTOM and `rule` has no merger.
    """
    if rule.mode is MergeMode.CUSTOM and not rule.merger:
        raise UserError("record merge mode CUSTOM needs a merger: package.module:function")
    raw = {"hoodie.record.merge.mode": rule.mode.value} if layout.has_merge_modes else {}
    if rule.ordering:
        raw[layout.ordering_property] = ",".join(rule.ordering)
    if rule.merger:
        raw["hoodie.record.merge.strategy.id"] = merge_strategy_id(rule.merger)
        raw[MERGER_PROPERTY] = rule.merger
    if rule.groups:
        raw[GROUPS_PROPERTY] = groups_text(rule.groups)
    if layout.has_merge_properties:
        return {**raw, **_settings(rule)}
    _refuse_settings(rule, layout)
    if not rule.merger and layout.has_merge_modes:
        raw["hoodie.record.merge.strategy.id"] = next(key for key, mode in STRATEGIES.items() if mode is rule.mode)
    if not rule.merger:
        event = rule.mode is _EVENT
        payload = "DefaultHoodieRecordPayload" if event else "OverwriteWithLatestAvroPayload"
        raw[PAYLOAD_PROPERTY] = _MODEL + payload
    return raw


def _payload(raw: Mapping[str, str]) -> str:
    return raw.get(PAYLOAD_PROPERTY, "")


def _strategy(raw: Mapping[str, str]) -> str:
    return raw.get("hoodie.record.merge.strategy.id") or raw.get("hoodie.compaction.record.merger.strategy") or ""


def _rule_of_payload(raw: Mapping[str, str], layout: TableLayout) -> MergeRule:
    payload, strategy = _payload(raw), _strategy(raw)
    # Tables with a custom merger also declare a payload class, which has no effect.
    if strategy not in ("", BY_PAYLOAD) and layout.has_merge_strategies:
        foreign = f"merge strategy {strategy}"
    elif payload in _PAYLOADS:
        return _PAYLOADS[payload]
    else:
        foreign = f"payload class {payload}" if payload else f"merge mode {raw.get('hoodie.record.merge.mode')}"
    return MergeRule(mode=MergeMode.CUSTOM, foreign=foreign)


def _with_partial_mode(rule: MergeRule, raw: Mapping[str, str]) -> MergeRule:
    text = raw.get("hoodie.table.partial.update.mode", "").upper()
    if not text:
        return rule
    if text not in _PARTIAL_NAMES:
        return replace(rule, mode=MergeMode.CUSTOM, foreign=f"hoodie.table.partial.update.mode={text}")
    marker = next((raw[_PROPERTY + key] for key in _UNAVAILABLE_KEYS if raw.get(_PROPERTY + key)), UNAVAILABLE)
    return replace(rule, partial=_PARTIAL_NAMES[text], unavailable=marker)


def _with_delete_marker(rule: MergeRule, raw: Mapping[str, str]) -> MergeRule:
    field = raw.get(_PROPERTY + _DELETE_FIELD) or raw.get(_DELETE_FIELD)
    marker = raw.get(_PROPERTY + _DELETE_MARKER) or raw.get(_DELETE_MARKER)
    if bool(field) != bool(marker):
        present, missing = (_DELETE_FIELD, _DELETE_MARKER) if field else (_DELETE_MARKER, _DELETE_FIELD)
        raise UserError(f"the table declares {present}={field or marker} but not {missing}; declare both or neither")
    return replace(rule, delete_field=field, delete_marker=marker) if field else rule


def _settings(rule: MergeRule) -> dict[str, str]:
    if rule.by_parts:
        raise UnsupportedError(
            "ordering by parts of one column exists in tables up to version 8; order by two columns instead"
        )
    raw = {}
    if rule.partial is not PartialMode.NONE:
        raw["hoodie.table.partial.update.mode"] = rule.partial.value
    if rule.partial is PartialMode.FILL_UNAVAILABLE:
        raw |= {_PROPERTY + key: rule.unavailable for key in _UNAVAILABLE_WRITTEN}
    if rule.delete_field and rule.delete_marker:
        raw[_PROPERTY + _DELETE_FIELD], raw[_PROPERTY + _DELETE_MARKER] = rule.delete_field, rule.delete_marker
    return raw


def _refuse_settings(rule: MergeRule, layout: TableLayout) -> None:
    features = {
        f"partial update mode {rule.partial.value}": rule.partial is not PartialMode.NONE,
        "a delete marker column": rule.delete_field is not None,
        "several ordering columns": len(rule.ordering) > 1,
        "ordering by parts of one column": rule.by_parts,
        "a merger or column groups": bool(rule.merger) and not layout.has_merge_strategies,
        # Hudi 0.15 compares ordering values among log records, whatever the payload class is.
        "ordering columns with merge mode COMMIT_TIME_ORDERING": bool(rule.ordering)
        and rule.mode is _COMMIT
        and not layout.has_merge_modes,
    }
    for feature, is_declared in features.items():
        if is_declared:
            raise UnsupportedError(f"a table of version {layout.version} cannot declare {feature}; version 9 can")
