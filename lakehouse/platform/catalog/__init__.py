"""The catalog database: namespaces, tables, specs, policies, requests, runs, leases and decisions (SQLAlchemy)."""
