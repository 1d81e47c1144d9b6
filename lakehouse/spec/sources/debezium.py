"""The formats of Debezium change events, and their requirements for a table."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.errors import UserError

DEBEZIUM_FORMATS = ("debezium", "debezium_avro")
#: The column in Hudi's Debezium payloads that contains the kind of a change, and its value for a delete.
OPERATION, DELETE = "_change_operation_type", "d"


def check_debezium(table: str, place: str, schema: Mapping[str, str], deletes: tuple[str | None, str | None]) -> None:
    """Raise UserError if a table does not declare its columns, or would store deletes as rows.

    Args:
        table: The name of the table.
        place: The file of its spec.
        schema: The columns that the spec declares.
        deletes: The column of the spec that marks deletes, and its value for a delete.
    """
    if not schema:
        raise UserError(
            f"table {table}: which columns of change events are read is not declared: add 'schema' to {place}",
            table=table,
        )
    if deletes != (OPERATION, DELETE):
        raise UserError(
            f"table {table}: deletes of Debezium would be stored as rows: add 'delete_field: {OPERATION}' and "
            f"'delete_marker: {DELETE}' to {place}, and the column {OPERATION} of type string to 'schema'",
            table=table,
        )
