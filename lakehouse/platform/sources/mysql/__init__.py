"""MySQL and MariaDB servers for `lakehouse.platform.sources.databases`.

connection   PyMySQL connections, and conversion of server errors
keys         key ranges in SQL
projection   expressions that read each type exactly
tables       columns and keys from the server's catalog
preflight    settings and rights without which the log cannot be read
server       implements `DatabaseServer`
reads        implements `TableReads`: chunks with connectorx, the log with the decoder
"""
