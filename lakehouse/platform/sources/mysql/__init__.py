"""MySQL and MariaDB as servers of `lakehouse.platform.sources.databases`.

connection   PyMySQL connections, and errors of servers as errors of this package
keys         ranges of keys in SQL
projection   expressions that read each type exactly
tables       columns and keys from the catalog of the server
preflight    settings and rights without which the log cannot be read
server       implements `DatabaseServer`
reads        implements `TableReads`: chunks with connectorx, the log with the decoder
"""
