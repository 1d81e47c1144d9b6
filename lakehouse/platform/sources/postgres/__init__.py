"""PostgreSQL servers for `lakehouse.platform.sources.databases`.

connection   psycopg connections, and conversion of server errors
keys         key ranges in SQL
projection   expressions that copy each type as `copied` decodes it
tables       columns, keys and replica identities from the server's catalog
publication  the publications of a spec, and the statements that complete them
slot         the replication slot of a spec
stream       the messages of a slot
server       implements `DatabaseServer`
copying      asyncpg connections that copy query results
copied       decodes copied rows to Arrow
reads        implements `TableReads`: chunks with binary COPY, the log with the decoder of `pgoutput`
"""
