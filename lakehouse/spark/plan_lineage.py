"""Column lineage of an analysed Spark plan, read from the JSON of the plan.

Spark gives each column of a plan an expression id. A walk from the views at the leaves to the root keeps, for each id,
the view columns that it depends on. Unknown expressions can be handled generally: a value depends on at most the
columns that its expression names. If the lineage of an expression is unknown, columns computed from it are unknown.
Unknown plan nodes cannot: a node that this module does not list is refused with `NotUnderstoodError`, because its
columns could have any origin. A condition with unknown lineage is refused too, because it affects all rows.

    direct      IDENTITY < TRANSFORMATION < AGGREGATION; a chain of expressions has the maximum kind
    indirect    of a column: CONDITIONAL (CASE, IF), WINDOW (PARTITION BY, ORDER BY), FILTER (of an aggregate)
                of all rows: JOIN, FILTER, GROUP_BY, SORT
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lakehouse.spec.contracts.lineage import LineageKind

#: A column of a view, and the kind of dependency on it.
Origin = tuple[str, str, LineageKind]
Origins = frozenset[Origin]

_NONE: Origins = frozenset()
_DIRECT = (LineageKind.IDENTITY, LineageKind.TRANSFORMATION, LineageKind.AGGREGATION)


class NotUnderstoodError(Exception):
    """A plan has a part whose lineage is unknown; the message names it."""


class _UnknownExpressionError(NotUnderstoodError):
    """An expression has an unknown lineage; only the columns that are computed from it are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanColumn:
    """A column of a plan node.

    Attributes:
        id: Its expression id.
        name: Its name.
        origins: The view columns that it depends on; empty for a constant.
        unknown: Why the view columns are unknown; empty if they are known.
    """

    id: int
    name: str
    origins: Origins = _NONE
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLineage:
    """The columns of a plan in their order, and the view columns that determine which rows the result contains."""

    columns: tuple[PlanColumn, ...]
    influences: Origins


def plan_lineage(plan: str, views: Collection[str]) -> PlanLineage:
    """Return the lineage of an analysed plan.

    Args:
        plan: The JSON of the plan, as `toJSON` of Spark's `TreeNode` prints it.
        views: Names of the temporary views at the leaves. Any other relation is refused.

    Raises:
        NotUnderstoodError: The plan has a node, a relation or a condition of unknown lineage.
    """
    walk = _Walk(views)
    columns = walk.columns_of(_tree(json.loads(plan)), {})
    return PlanLineage(columns=columns, influences=frozenset(walk.influences))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    name: str
    fields: Mapping[str, Any]
    children: tuple[_Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """The view columns that a value depends on, or why they are unknown."""

    origins: Origins = _NONE
    unknown: str = ""


_Columns = tuple[PlanColumn, ...]
_Scope = Mapping[int, PlanColumn]


def _tree(nodes: Sequence[Any]) -> _Node:
    """Return the tree for a list of nodes in preorder; each node contains the number of its children."""
    rest = iter(nodes)

    def following() -> _Node:
        fields = next(rest)
        children = tuple(following() for _ in range(fields["num-children"]))
        return _Node(name=fields["class"].rpartition(".")[2], fields=fields, children=children)

    return following()


def _id(fields: Mapping[str, Any]) -> int:
    return int(fields["exprId"]["id"])


def _object(value: Any) -> str:
    """Return the class of a Scala object or case class, such as `LeftOuter`."""
    text = value.get("object") or value.get("product-class") or ""
    return str(text).rpartition(".")[2].rstrip("$")


def _with(origins: Origins, kind: LineageKind) -> Origins:
    """Return origins after one more step; an indirect origin stays unchanged."""
    return frozenset((view, column, _composed(inner, kind)) for view, column, inner in origins)


def _composed(inner: LineageKind, outer: LineageKind) -> LineageKind:
    if not inner.is_direct:
        return inner
    return outer if not outer.is_direct else max(inner, outer, key=_DIRECT.index)


def _merged(parts: Iterable[Origins]) -> Origins:
    return frozenset().union(*parts)


def _merged_value(parts: Sequence[PlanColumn | _Value]) -> _Value:
    unknown = next((one.unknown for one in parts if one.unknown), "")
    return _Value(unknown=unknown) if unknown else _Value(origins=_merged(one.origins for one in parts))


def _known_origins(column: PlanColumn) -> Origins:
    if column.unknown:
        raise _UnknownExpressionError(column.unknown)
    return column.origins


def _expressions(value: Any) -> list[_Node]:
    return [_tree(one) for one in value or ()]


def _has_attributes(value: Any) -> bool:
    if isinstance(value, dict):
        return str(value.get("class", "")).endswith(".AttributeReference") or any(map(_has_attributes, value.values()))
    return isinstance(value, list) and any(map(_has_attributes, value))


class _Walk:
    """Walks a plan; `influences` collects the columns that determine which rows the result contains."""

    def __init__(self, views: Collection[str]) -> None:
        # Spark compares names of views without case.
        self._views = {name.lower(): name for name in views}
        self._definitions: dict[int, _Node] = {}
        self._known: dict[int, _Columns] = {}
        self.influences: set[Origin] = set()

    # Plan nodes

    def columns_of(self, node: _Node, outer: _Scope) -> _Columns:
        """Return the output columns of a plan node; `outer` has the columns around a subquery."""
        if node.name in _SAME_COLUMNS:
            return self.columns_of(node.children[0], outer)
        read = _NODES.get(node.name)
        if read is None:
            raise NotUnderstoodError(f"plan node {node.name} is not understood")
        return read(self, node, outer)

    def _view(self, node: _Node, outer: _Scope) -> _Columns:
        del outer
        identifier = node.fields["desc"]["identifier"]
        name = self._views.get(str(identifier["table"]).lower())
        (relation,) = node.children
        if name is None or not node.fields["isTempView"] or identifier.get("database"):
            raise NotUnderstoodError(f"view {identifier['table']} is no input of the ingestion")
        if relation.name not in ("LogicalRDD", "LocalRelation"):
            raise NotUnderstoodError(f"view {name} is a {relation.name}")
        attributes = [one.fields for one in _expressions(relation.fields["output"])]
        return tuple(
            PlanColumn(id=_id(one), name=one["name"], origins=frozenset({(name, one["name"], LineageKind.IDENTITY)}))
            for one in attributes
        )

    def _constants(self, node: _Node, outer: _Scope) -> _Columns:
        del outer
        return self._output(node.fields.get("output"), ())

    def _project(self, node: _Node, outer: _Scope) -> _Columns:
        return self._named(node.fields["projectList"], self._scope(node, outer))

    def _aggregate(self, node: _Node, outer: _Scope) -> _Columns:
        scope = self._scope(node, outer)
        self._influence(_expressions(node.fields["groupingExpressions"]), scope, LineageKind.GROUP_BY)
        return self._named(node.fields["aggregateExpressions"], scope)

    def _window(self, node: _Node, outer: _Scope) -> _Columns:
        below = self.columns_of(node.children[0], outer)
        return (*below, *self._named(node.fields["windowExpressions"], _scope_of(below, outer)))

    def _filter(self, node: _Node, outer: _Scope) -> _Columns:
        below = self.columns_of(node.children[0], outer)
        self._influence([_tree(node.fields["condition"])], _scope_of(below, outer), LineageKind.FILTER)
        return below

    def _sort(self, node: _Node, outer: _Scope) -> _Columns:
        below = self.columns_of(node.children[0], outer)
        self._influence(_expressions(node.fields["order"]), _scope_of(below, outer), LineageKind.SORT)
        return below

    def _join(self, node: _Node, outer: _Scope) -> _Columns:
        left, right = (self.columns_of(child, outer) for child in node.children)
        return self._joined(node, left, right, outer)

    def _lateral_join(self, node: _Node, outer: _Scope) -> _Columns:
        left = self.columns_of(node.children[0], outer)
        right = self._subquery(_tree(node.fields["right"]), _scope_of(left, outer))
        return self._joined(node, left, right, outer)

    def _joined(self, node: _Node, left: _Columns, right: _Columns, outer: _Scope) -> _Columns:
        kind = _object(node.fields["joinType"])
        if kind not in _JOINS:
            raise NotUnderstoodError(f"join {kind} is not understood")
        if node.fields.get("condition"):
            scope = _scope_of((*left, *right), outer)
            self._influence([_tree(node.fields["condition"])], scope, LineageKind.JOIN)
        return (*left, *right) if _JOINS[kind] else left

    def _union(self, node: _Node, outer: _Scope) -> _Columns:
        if node.fields.get("byName"):
            raise NotUnderstoodError("a union by name is not resolved")
        parts = [self.columns_of(child, outer) for child in node.children]
        return tuple(_column(some[0].id, some[0].name, _merged_value(some)) for some in zip(*parts, strict=True))

    def _compared(self, node: _Node, outer: _Scope) -> _Columns:
        # INTERSECT and EXCEPT: the second input determines which rows of the first input remain.
        left, right = (self.columns_of(child, outer) for child in node.children)
        self.influences |= _with(_merged(map(_known_origins, right)), LineageKind.FILTER)
        return left

    def _generate(self, node: _Node, outer: _Scope) -> _Columns:
        if node.fields["unrequiredChildIndex"]:
            raise NotUnderstoodError("plan node Generate drops columns")
        below = self.columns_of(node.children[0], outer)
        made = self._value(_tree(node.fields["generator"]), _scope_of(below, outer))
        made = _Value(origins=_with(made.origins, LineageKind.TRANSFORMATION), unknown=made.unknown)
        names = _expressions(node.fields["generatorOutput"])
        return (*below, *self._output(node.fields["generatorOutput"], [made] * len(names)))

    def _expand(self, node: _Node, outer: _Scope) -> _Columns:
        # GROUPING SETS: each row is repeated, with NULL in the columns that a set does not group by.
        scope = self._scope(node, outer)
        rows = [[self._value(one, scope) for one in _expressions(row)] for row in node.fields["projections"]]
        return self._output(node.fields["output"], [_merged_value(some) for some in zip(*rows, strict=True)])

    def _with_definitions(self, node: _Node, outer: _Scope) -> _Columns:
        *definitions, query = node.children
        self._definitions |= {one.fields["id"]: one for one in definitions}
        return self.columns_of(query, outer)

    def _reference(self, node: _Node, outer: _Scope) -> _Columns:
        number = node.fields["cteId"]
        definition = self._definitions.get(number)
        if definition is None or node.fields.get("recursive"):
            raise NotUnderstoodError("a recursive query is not understood")
        if number not in self._known:
            # Only the definitions that the query uses are relevant.
            self._known[number] = self.columns_of(definition.children[0], outer)
        return self._output(node.fields["output"], [_merged_value([one]) for one in self._known[number]])

    # Expressions

    def _scope(self, node: _Node, outer: _Scope) -> _Scope:
        return _scope_of([column for child in node.children for column in self.columns_of(child, outer)], outer)

    def _output(self, attributes: Any, values: Sequence[_Value]) -> _Columns:
        """Return the columns of attributes that a node declares; without values they are constants."""
        names = _expressions(attributes)
        return tuple(
            _column(_id(one.fields), one.fields["name"], value)
            for one, value in zip(names, values or [_Value()] * len(names), strict=True)
        )

    def _named(self, expressions: Any, scope: _Scope) -> _Columns:
        named = _expressions(expressions)
        if any("exprId" not in one.fields for one in named):
            raise NotUnderstoodError("a column has no expression id")
        return tuple(_column(_id(one.fields), one.fields["name"], self._value(one, scope)) for one in named)

    def _influence(self, conditions: Iterable[_Node], scope: _Scope, kind: LineageKind) -> None:
        for one in conditions:
            self.influences |= {(view, column, kind) for view, column, _ in self._origins(one, scope)}

    def _value(self, node: _Node, scope: _Scope) -> _Value:
        """Return the view columns that the value of an expression depends on, or why they are unknown."""
        try:
            return _Value(origins=self._origins(node, scope))
        except _UnknownExpressionError as error:
            return _Value(unknown=str(error))

    def _origins(self, node: _Node, scope: _Scope) -> Origins:
        """Return the view columns that the value of an expression depends on; raise if they are unknown."""
        if node.name == "AttributeReference":
            if _id(node.fields) not in scope:
                raise _UnknownExpressionError(f"column {node.fields['name']!r} is of an unknown relation")
            return _known_origins(scope[_id(node.fields)])
        if node.name == "OuterReference":
            return self._origins(_tree(node.fields["e"]), scope)
        if node.name == "Alias":
            return self._origins(node.children[0], scope)
        if "plan" in node.fields:
            return self._subquery_origins(node, scope)
        if not node.children and _has_attributes(list(node.fields.values())):
            raise _UnknownExpressionError(f"expression {node.name} is not understood")
        kinds = _kinds_of(node)
        return _merged(
            _with(self._origins(child, scope), kind) for child, kind in zip(node.children, kinds, strict=True)
        )

    def _subquery_origins(self, node: _Node, scope: _Scope) -> Origins:
        columns = self._subquery(node, scope)
        if node.name == "ScalarSubquery":
            return _known_origins(columns[0])
        # EXISTS only tests for rows; its conditions are influences.
        return _NONE if node.name == "Exists" else _merged(map(_known_origins, columns))

    def _subquery(self, node: _Node, scope: _Scope) -> _Columns:
        if node.name not in _SUBQUERIES:
            raise _UnknownExpressionError(f"subquery {node.name} is not understood")
        return self.columns_of(_tree(node.fields["plan"]), scope)


def _scope_of(columns: Iterable[PlanColumn], outer: _Scope) -> _Scope:
    return {**outer, **{one.id: one for one in columns}}


def _column(number: int, name: str, value: _Value) -> PlanColumn:
    return PlanColumn(id=number, name=name, origins=value.origins, unknown=value.unknown)


def _kinds_of(node: _Node) -> Iterator[LineageKind]:
    """Yield how the value of an expression depends on each of its children."""
    count = len(node.children)
    for number in range(count):
        if node.name == "CaseWhen":
            is_condition = number % 2 == 0 and number < count - 1
        elif node.name in ("If", "PivotFirst"):
            is_condition = number == 0
        else:
            is_condition = False
        if is_condition:
            yield LineageKind.CONDITIONAL
        elif node.name in _RANKS or (node.name == "WindowExpression" and number):
            yield LineageKind.WINDOW
        elif node.name == "WindowExpression":
            # The function itself, which determines the result for its arguments.
            yield LineageKind.IDENTITY
        elif node.name == "AggregateExpression":
            yield LineageKind.FILTER if number else LineageKind.AGGREGATION
        else:
            yield LineageKind.TRANSFORMATION


#: Nodes with the columns of their only child.
_SAME_COLUMNS = frozenset(
    {
        "Deduplicate",
        "Distinct",
        "GlobalLimit",
        "LocalLimit",
        "Offset",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "SubqueryAlias",
        "Tail",
    }
)
#: Joins, and whether their results contain the columns of the right side.
_JOINS: Mapping[str, bool] = MappingProxyType(
    {
        "Inner": True,
        "Cross": True,
        "LeftOuter": True,
        "RightOuter": True,
        "FullOuter": True,
        "LeftSemi": False,
        "LeftAnti": False,
    }
)
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"})
#: Functions whose arguments are the ordering of their window.
_RANKS = frozenset({"Rank", "DenseRank", "PercentRank"})
_NODES: Mapping[str, Callable[[_Walk, _Node, _Scope], _Columns]] = MappingProxyType(
    {
        "Aggregate": _Walk._aggregate,
        "CTERelationRef": _Walk._reference,
        "Except": _Walk._compared,
        "Expand": _Walk._expand,
        "Filter": _Walk._filter,
        "Generate": _Walk._generate,
        "Intersect": _Walk._compared,
        "Join": _Walk._join,
        "LateralJoin": _Walk._lateral_join,
        "LocalRelation": _Walk._constants,
        "OneRowRelation": _Walk._constants,
        "Project": _Walk._project,
        "Range": _Walk._constants,
        "Sort": _Walk._sort,
        "Union": _Walk._union,
        "View": _Walk._view,
        "Window": _Walk._window,
        "WithCTE": _Walk._with_definitions,
    }
)
