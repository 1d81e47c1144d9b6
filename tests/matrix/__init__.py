"""Short suites over all supported versions of Python, Spark, Airflow and the packages below them."""
