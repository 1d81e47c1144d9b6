"""REST API of the pages: a FastAPI application that the plugin mounts in Airflow's API server below `/lakehouse`.

Each endpoint requires a permission of the Airflow user: reading needs GET on DAGs, an action needs PUT on the DAG
concerned. The modules read the catalog with SQLAlchemy and import no pyarrow. Only the API server imports them.
"""
