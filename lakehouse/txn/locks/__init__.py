"""Lock providers: who keeps the table lock. Each takes it once at most, loses it to one thief at most, and gives every
acquisition a number above all before it, the fencing token, by which a holder that slept through its end finds out.

    in_process     threads of this process         nothing outside sees it
    filesystem     `.hoodie/holder.json`           compare and swap; `.hoodie/lock` beside it for Hudi's own
    storage        `.hoodie/.locks/table_lock.json`  compare and swap, in the bytes of Hudi's own
    sqlalchemy     a row of a database             compare and swap
    zookeeper      the lowest of ephemeral nodes   the nodes of Curator, as Hudi's own
    hivemetastore  a lock of the metastore         as Hudi's own

Nothing here waits: `lakehouse.txn.lock` does, and is the only door for operations.
"""
