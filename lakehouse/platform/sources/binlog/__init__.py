"""The binlog of MySQL and MariaDB as Arrow tables of row changes.

    columns      columns of source tables and the Arrow type per SQL type: the only type mapping
    positions    GTID sets and log positions; the ordering value of changes
    changes      output of the decoder: batches of row changes and schema events
    events       event types, headers, checksums
    table_map    table descriptions in the log
    row_code     one generated function per table description that splits rows into raw values
    values       raw values to Arrow arrays
    json_text    MySQL binary JSON to JSON strings
    statements   effects of the statements in query events on tables
    decoder      events to changes of whole transactions; does no I/O
    dump         events from a server, through PyMySQL; needs the extra `mysql`

The decoder skips no event silently. An unknown event type, or a statement that changes rows without row events, results
in an error or a `SchemaEvent`.
"""
