"""Who knows the tables: names, specs, policies, requests, runs, leases and decisions, in one database.

The catalog is bookkeeping for the scheduler and for people; it is never the truth about data. What a table holds stands
on its timeline, and a run that loses the catalog may be late or run for nothing, but cannot harm a table.
"""
