"""Lock providers of the table lock.

At most one process holds a lock. An expired lock is taken over by at most one other process. Each acquisition gets a
fencing token greater than all earlier ones, so that a process whose lease expired can detect it.
"""
