"""Queries of the catalog for pages and the REST API: SQLAlchemy only, because Airflow's web server has no pyarrow."""
