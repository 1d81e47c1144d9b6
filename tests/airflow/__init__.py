"""What runs in Airflow's environment, where there is no pyspark."""
