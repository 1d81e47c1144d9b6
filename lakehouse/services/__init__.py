"""Which service should run on which table now, why, and what came of it.

assess     is it due, and what would it cost and bring?      one table, its timeline
choose     what runs now, what waits?                        pure: priorities, deadlines, budgets, clashes
schedule   all tables of a catalog; every decision recorded  no Spark
run        some tables, one after the other, in one process  each under its lease, each failure its own
"""
