"""PostgreSQL as a server of `lakehouse.platform.sources.databases`.

connection   connections of psycopg, and errors of servers as errors of this package
keys         ranges of keys in SQL
projection   expressions that copy each type as `copied` decodes it
tables       columns, keys and replica identities from the catalog of the server
publication  the publications of a spec, and the statements that complete them
slot         the replication slot of a spec
stream       the messages of a slot
server       implements `DatabaseServer`
copying      connections of asyncpg that copy the rows of queries
copied       decodes copied rows to Arrow
reads        implements `TableReads`: chunks with binary COPY, the log with the decoder of `pgoutput`
"""
