"""SQL on the tables of a catalog: statements are recognised by tokens, planned into values, and executed by an engine.

    tokens       the tokens of a statement, and a cursor over them
    statements   one frozen value per kind of statement
    recognise    tokens -> statement; a statement that names no table of the catalog stays unchanged
    references   the references to tables in a query, and the replacement of each by a view
    pushdown     the conditions and columns of a reference that a scan can use to read fewer files
    engine       the protocol of query engines: DuckDB here, Spark in `lakehouse.spark`
    session      statement -> result, with the catalog and an engine

Expressions are never generated from a syntax tree: the engine evaluates the original characters, cut by the positions
of tokens. Conditions that are pushed into a scan only exclude files and rows, and the engine evaluates them again.
"""
