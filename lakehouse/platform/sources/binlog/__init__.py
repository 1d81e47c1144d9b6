"""The binlog of MySQL and MariaDB as Arrow tables of row changes.

    columns      columns of source tables, and the Arrow type of each type: the only table of types
    positions    sets of GTIDs, and places in the log; the ordering value of changes
    changes      what the decoder gives: batches of row changes and schema events
    events       types of events, headers, checksums
    table_map    the description of a table in the log
    row_code     one generated function for each description, which splits rows into raw values
    values       raw values to Arrow arrays
    json_text    binary JSON of MySQL to text
    statements   what the statements of query events do to tables
    decoder      events to changes of whole transactions; knows no socket
    dump         events from a server, through PyMySQL; needs the extra `mysql`

The decoder skips no event silently. An event type that it does not know, and everything that changes rows without row
events, is an error or a `SchemaEvent`.
"""
