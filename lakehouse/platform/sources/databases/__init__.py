"""Tables of database servers as sources: a snapshot in chunks and the log at once, without locks.

    server       the protocol of a server: its tables, positions of its log, chunks, changes
    checkpoint   the position and the loaded part of a table, as its commits carry them
    plan         which chunks and which window of the log a commit reads
    staging      read chunks and the log in tasks into files of the run
    source       the `Source` of one table; several tables share one read of the log

One commit applies one window to a table: first its tasks read chunks of the table, then the run notes the end of the
log, then one task reads the log from the position of the table to that end. Of each key the last change in the window
wins; a row of a chunk is used if the window has no change of its key.

Why the table is then as the source is at the end of the window, for all keys that are loaded: the position of a new
table is noted before its first chunk is read, and every change that a chunk does not see is in the log after that
position. The end is noted after the chunks are read, so every change that a chunk does see is before the end. If the
window has a change of a key, its last one is the state of the key at the end. If it has none, no transaction changed
the key since the position, so the row of the chunk is its state. Commits of a table follow one another, because each
requires that the checkpoint it was planned from is still the newest.

Changes are applied whether their keys are loaded or not. A chunk that is read later replaces such a row by one that is
as new or newer, and later windows repair what lies between.
"""
