"""PostgreSQL as a server of `lakehouse.platform.sources.databases`.

connection   connections of psycopg, and errors of servers as errors of this package
keys         ranges of keys in SQL
projection   expressions that read each type as the log has it
tables       columns, keys and replica identities from the catalog of the server
publication  the publications of a spec, and the statements that complete them
slot         the replication slot of a spec
stream       the messages of a slot
server       implements `DatabaseServer`
reads        implements `TableReads`: chunks with ADBC, the log with the decoder of `pgoutput`
"""
