"""What Airflow needs to run lakehouse jobs: the operator, the assets and the table specs. Light: parsing imports it."""
