"""The demo: generated data, an Airflow with its own database, the runs of its DAGs, and a report of the result."""
