"""Custom mergers: each module is a plain Python file that a table spec names as `mergers.module:function`.

The parent folder must be importable in the process that opens the table and in Spark's workers. The PYTHONPATH of
Airflow's jobs contains the folder of the DAGs, or the folders in LAKEHOUSE_MODULES. Copy this folder there, or set
`LAKEHOUSE_MODULES` to the folder `examples`. In a shell, set `PYTHONPATH=dags/examples`. Workers on other machines get
an archive:

    cd dags/examples && zip -r mergers.zip mergers && spark-submit --py-files mergers.zip ...

For ingestion, declare the archive in the spec: `spark: {spark.submit.pyFiles: /path/mergers.zip}`.
"""
