"""Messages of PostgreSQL's output plugin `pgoutput` as Arrow tables of row changes. No module here knows a socket.

    messages     the parts of each message, and the values of many tuples at once
    columns      columns of source tables, and the Arrow type of each type: the only table of types
    values       texts of values to Arrow arrays
    batches      rows of one version of a table
    decoder      messages to changes of whole transactions

The decoder skips no message silently: a message that it does not know is an error that names it.
"""
