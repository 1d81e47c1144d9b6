"""Airflow operators, sensors, assets and DAG builders of lakehouse; light imports, because DAG parsing needs them."""
