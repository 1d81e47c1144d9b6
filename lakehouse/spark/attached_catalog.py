"""Names of a catalog's tables in `spark.sql`: `attach(spark, catalog)` and `detach(spark)`.

`attach` replaces the method `sql` of one session object. A statement that names no table of the catalog reaches Spark
as the same string. In a query, a temporary view of a scan replaces each reference to a table of the catalog; the view
is dropped after Spark has resolved the query, and the DataFrame keeps its rows. Conditions and columns of the query
are pushed into the scan for pruning only: Spark evaluates the original statement again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from lakehouse.core.table.scan import TableScan
from lakehouse.errors import UserError, nearest
from lakehouse.spark.scan import spark_schema
from lakehouse.spark.versions.choice import require_classic, spark_version
from lakehouse.spark.worker_python import set_worker_python
from lakehouse.sql.catalog import SqlCatalog
from lakehouse.sql.direct_errors import missing_namespace, missing_table
from lakehouse.sql.engine import Parameters, Target
from lakehouse.sql.references import TABLE_FUNCTIONS
from lakehouse.sql.session import SqlSession
from lakehouse.sql.tokens import SPARK, name_parts, quoted, tokens_of

_UTC = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
#: Settings that change the meaning of quotes and backslashes.
_DOUBLE_QUOTED = ("spark.sql.ansi.enabled", "spark.sql.ansi.doubleQuotedIdentifiers")
_ESCAPED = "spark.sql.parser.escapedStringLiterals"


def attach(spark: SparkSession, catalog: SqlCatalog, *, warehouse: str = "") -> None:
    """Make the tables of a catalog usable by name in the method `sql` of a session.

    Nothing is read until a statement names a table. Each statement opens the tables that it names, so that new tables
    and commits are visible without another call. A second call replaces the first.

    Args:
        spark: The session. Other session objects, such as a result of `spark.newSession()`, are not changed.
        catalog: The catalog, such as `lakehouse.load_catalog()`.
        warehouse: Location below which CREATE TABLE without LOCATION puts `namespace/table`; by default the variable
            LAKEHOUSE_HOME, or the current directory.

    Raises:
        UserError: The version of Spark is not supported, or the session is a Spark Connect session.

    Example:
        attach(spark, load_catalog("prod"))
        spark.sql("SELECT city, sum(fare) FROM sales.orders WHERE day = '2026-01-31' GROUP BY city").show()
    """
    require_classic(spark)
    set_worker_python(spark)
    detach(spark)
    original = spark.sql
    session = SqlSession(catalog=catalog, engine=SparkSqlEngine(spark, original), warehouse=warehouse)

    def sql(sqlQuery: str, args: Any = None, **kwargs: Any) -> DataFrame:
        """Run a statement, by the session or for tables of the attached catalog; see `SparkSession.sql`."""
        try:
            frame: DataFrame = session.execute(sqlQuery, Parameters(values=args, objects=kwargs))
        except AnalysisException as error:
            direct = _direct(session, error)
            if direct is None:
                raise
            raise direct from error
        return frame

    def table(tableName: str) -> DataFrame:
        """Return the rows of a table in the attached catalog or in Spark; see `SparkSession.table`."""
        name = name_parts(tableName)
        if not session.belongs(name) and session.view(name[-1]) is None:
            return type(spark).table(spark, tableName)
        return sql(f"SELECT * FROM {'.'.join(quoted(part) for part in name)}")

    # Only this object changes, so `detach` has nothing else to restore.
    vars(spark).update(sql=sql, table=table)


def detach(spark: SparkSession) -> None:
    """Undo `attach`; DataFrames that were made before stay valid. Without an attached catalog nothing happens."""
    for name in ("sql", "table"):
        vars(spark).pop(name, None)


class MissingNameError(UserError, AnalysisException):
    """A statement names a table or function that neither Spark nor the attached catalog has."""


def _direct(session: SqlSession, error: AnalysisException) -> MissingNameError | None:
    """Return an error that names the similar table or function of the catalog, or None to keep the message of Spark."""
    condition, parameters = _condition(error), error.getMessageParameters() or {}
    missing = None
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        missing = missing_table(session, name_parts(parameters.get("relationName", "")))
    elif condition == "SCHEMA_NOT_FOUND":
        missing = missing_namespace(session, name_parts(parameters.get("schemaName", "")))
    if missing is not None:
        return MissingNameError(missing.message)
    if condition == "UNRESOLVABLE_TABLE_VALUED_FUNCTION":
        name = name_parts(parameters.get("name", ""))[-1].lower()
        near = nearest(name, TABLE_FUNCTIONS)
        return MissingNameError(f"there is no table function {name}.{near}") if near else None
    return None


def _condition(error: AnalysisException) -> str:
    # Spark 4 renamed the method.
    get = getattr(error, "getCondition", None) or error.getErrorClass
    return str(get() or "")


def _whole(rows: TableScan | pa.Table) -> TableScan | pa.Table:
    """Return a scan with all columns."""
    return replace(rows, request=replace(rows.request, columns=None)) if isinstance(rows, TableScan) else rows


class SparkSqlEngine:
    """Evaluates the queries of statements by Spark."""

    dialect, mark, prunes = SPARK, "`", False

    def __init__(self, spark: SparkSession, original: Any) -> None:
        self.session: Any = spark
        self._sql = original

    @property
    def is_utc(self) -> bool:
        """Whether the session reads timestamps without a zone as UTC."""
        return self.session.conf.get("spark.sql.session.timeZone") in _UTC

    def text_problem(self, text: str) -> str:
        """Return why a setting of Spark gives quotes of a statement another meaning; empty if none does."""
        if '"' not in text and "\\" not in text:
            return ""
        quoted_twice = [token.text for token in tokens_of(text, SPARK) if text[token.start] == '"']
        if quoted_twice and all(self.option(key) == "true" for key in _DOUBLE_QUOTED):
            return (
                f"{_DOUBLE_QUOTED[1]}=true makes {quoted_twice[0]!r} an identifier, and here it is a string: write "
                "strings in single quotes and identifiers in backticks"
            )
        if "\\" in text and self.option(_ESCAPED) == "true":
            return f"{_ESCAPED}=true gives backslashes another meaning than here: SET {_ESCAPED} = false"
        return ""

    def has_view(self, name: str) -> bool:
        """Return whether the session has a temporary view with this name."""
        return bool(self.session._jsparkSession.sessionState().catalog().getTempView(name).isDefined())

    def drop_view(self, name: str) -> None:
        """Drop a temporary view of the session with this name, if there is one."""
        self.session.catalog.dropTempView(name)

    def has_relation(self, name: Sequence[str]) -> bool:
        """Return whether Spark has a table or view with this name."""
        return bool(self.session.catalog.tableExists(".".join(quoted(part) for part in name)))

    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces of Spark's current catalog."""
        return tuple(database.name for database in self.session.catalog.listDatabases())

    def tables(self, namespace: str) -> tuple[str, ...]:
        """Return Spark's tables and views in a namespace; none if it does not exist."""
        if not self.session.catalog.databaseExists(namespace):
            return ()
        return tuple(table.name for table in self.session.catalog.listTables(namespace) if not table.isTemporary)

    def has_namespace(self, namespace: str) -> bool:
        """Return whether Spark's current catalog has a namespace."""
        return bool(self.session.catalog.databaseExists(namespace))

    def run(self, text: str, views: Mapping[str, TableScan | pa.Table], parameters: Parameters) -> DataFrame:
        """Run a statement; its views exist until Spark has resolved it."""
        given = {} if parameters.values is None else {"args": parameters.values}
        try:
            for name, rows in views.items():
                self._frame(rows).createOrReplaceTempView(name)
            frame: DataFrame
            try:
                frame = self._sql(text, **given, **parameters.objects)
            except AnalysisException as error:
                if not views or not _condition(error).startswith("UNRESOLVED_COLUMN"):
                    raise
                # The views have the columns that the statement names. Spark proposes similar names of all columns.
                for name, rows in views.items():
                    self._frame(_whole(rows)).createOrReplaceTempView(name)
                frame = self._sql(text, **given, **parameters.objects)
            return frame
        finally:
            for name in views:
                self.session.catalog.dropTempView(name)

    def result(self, rows: pa.Table) -> DataFrame:
        """Return a table as a DataFrame."""
        return spark_version().from_arrow(self.session, rows, spark_schema(rows.schema))

    def schema(self, frame: DataFrame) -> pa.Schema:
        """Return the columns of a DataFrame."""
        return to_arrow_schema(frame.schema)

    def conform(self, frame: DataFrame, targets: Sequence[Target]) -> DataFrame:
        """Return a DataFrame with the columns and types of a table; a lossy value fails the write."""
        numbered = frame.toDF(*[f"c{number}" for number in range(len(frame.columns))])
        target_schema = spark_schema(pa.schema([target.field for target in targets]))
        source = self.schema(frame)
        columns = []
        for target, kind in zip(targets, target_schema.fields, strict=True):
            if target.source is None:
                column = F.lit(target.constant).cast(kind.dataType)
            else:
                column = _converted(F.col(f"c{target.source}"), source.field(target.source).type, target, kind.dataType)
            columns.append(column.alias(target.field.name))
        return numbered.select(*columns)

    def source(self, frame: DataFrame) -> DataFrame:
        """Return the DataFrame itself: the statement decides whether Spark writes its rows."""
        return frame

    def option(self, key: str) -> str | None:
        """Return a setting of the session; None if it is not set."""
        value: str | None = self.session.conf.get(key, None)
        return value

    def _frame(self, rows: TableScan | pa.Table) -> DataFrame:
        if isinstance(rows, TableScan):
            frame: DataFrame = rows.to_spark(self.session)
            return frame
        return self.result(rows)


def _converted(column: Any, stored: pa.DataType, target: Target, kind: Any) -> Any:
    """Return a column in the type of the table; a row whose value would change fails."""
    wanted, types = target.field.type, pa.types
    if stored == wanted:
        return column
    if (types.is_nested(stored) or types.is_nested(wanted)) and not types.is_null(stored):
        cast = column.cast(kind)
        if _nullable(stored) == _nullable(wanted) or types.is_nested(stored) != types.is_nested(wanted):
            return cast
        if _has_inner_map(stored):
            raise UserError(
                f"column {target.field.name}: {stored} cannot be compared with {wanted}; convert it in the query with "
                "CAST"
            )
        back = cast.cast(_type_of(_nullable(stored)))
        # Maps cannot be compared, so they are compared as lists of their entries.
        first, second = (F.map_entries(side) if types.is_map(stored) else side for side in (back, column))
        return _or_error(~first.eqNullSafe(second), cast, target, stored, kind)
    is_text = types.is_string(stored) and not types.is_string(wanted)
    if is_text and not (types.is_date(wanted) or types.is_timestamp(wanted)):
        raise UserError(
            f"column {target.field.name}: a string cannot be stored as {wanted}; convert it in the query with CAST"
        )
    # In ANSI mode a cast would fail with a message without the column.
    cast = spark_version().try_cast(column, kind.simpleString())
    is_exact = types.is_integer(wanted) or types.is_decimal(wanted)
    is_lost = cast.isNull() & column.isNotNull()
    if is_exact and not types.is_null(stored):
        is_lost = is_lost | ~cast.cast(_type_of(stored)).eqNullSafe(column)
    return _or_error(is_lost, cast, target, stored, kind)


# parameters: the test and the result, and the types in the message
def _or_error(is_lost: Any, cast: Any, target: Target, stored: pa.DataType, kind: Any) -> Any:
    wanted = target.field.type
    message = f"column {target.field.name}: a value of type {stored} cannot be stored as {wanted} without loss"
    return F.when(is_lost, F.raise_error(F.lit(message)).cast(kind)).otherwise(cast)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with nullable fields and elements of usual names: a query marks literals as required."""
    if pa.types.is_struct(kind):
        return pa.struct(
            [(kind.field(number).name, _nullable(kind.field(number).type)) for number in range(kind.num_fields)]
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_nullable(kind.value_type))
    return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type)) if pa.types.is_map(kind) else kind


def _has_inner_map(kind: pa.DataType) -> bool:
    """Return whether a map is inside of a struct, a list or another map."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    if pa.types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    return any(pa.types.is_map(each) or _has_inner_map(each) for each in inner)


def _type_of(kind: pa.DataType) -> Any:
    return spark_schema(pa.schema([pa.field("value", kind)])).fields[0].dataType
