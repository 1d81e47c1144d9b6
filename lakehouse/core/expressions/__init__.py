"""SQL expressions: parsed with sqlglot, evaluated on Arrow data.

sqlglot is imported when the first string is parsed. No string reaches `eval`: the parser returns values of
`model.expression`, and each operator and function is one entry of a table.
"""
