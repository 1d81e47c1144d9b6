"""Database tables as sources: the snapshot is read in chunks while the log is read, without locks.

    server       the interface of a server: its tables, log positions, chunks, changes
    checkpoint   the position and the loaded part of a table, as stored in its commits
    plan         the chunks and the log window that a commit reads
    staging      read chunks and the log in tasks, and write them to files of the run
    source       the `Source` of one table; several tables share one read of the log

One commit applies one window to a table: first its tasks read chunks of the table, then the run notes the end of the
log, then one task reads the log from the table's position to that end. The last change per key in the window wins; a
row of a chunk is used if the window contains no change of its key.

For all loaded keys, the table then equals the source at the end of the window. The reason: the position of a new table
is noted before its first chunk is read, and every change that is missing in a chunk is in the log after that position.
The end is noted after the chunks are read, so every change in a chunk is before the end. If the window contains changes
of a key, the last one is the key's state at the end. If it contains none, no transaction changed the key since the
position, so the row of the chunk is its state. Commits of a table follow one another, because each requires that the
checkpoint it was planned from is still the newest.

Changes are applied even if their keys are not loaded yet. A chunk that is read later replaces such a row by a row of
the same or a newer version, and later windows add the changes in between.
"""
