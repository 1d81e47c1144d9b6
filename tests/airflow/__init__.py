"""Tests that run in Airflow's environment, which has no pyspark."""
