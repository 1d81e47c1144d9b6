"""Messages of PostgreSQL's output plugin `pgoutput` as Arrow tables of row changes. No module here does I/O.

    messages     the parts of each message, and the values of many tuples together
    columns      columns of source tables and the Arrow type per SQL type: the only type mapping
    values       printed values to Arrow arrays
    batches      rows of one table version
    decoder      messages to changes of whole transactions

The decoder skips no message silently: an unknown message is an error that contains its type.
"""
