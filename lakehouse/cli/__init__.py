"""Command line of the package. Users call it in a shell, and Airflow calls it through spark-submit."""
