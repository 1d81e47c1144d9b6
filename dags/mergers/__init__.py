"""Mergers of one's own: each module is a plain Python file that a table spec names as `mergers.module:function`.

The folder above must be importable where the table is opened and in Spark's workers. For jobs of Airflow it is: the
folder of the DAGs, or those in LAKEHOUSE_MODULES, go on their PYTHONPATH. By hand say `PYTHONPATH=dags`; where workers
run elsewhere, an archive goes with the job:

    cd dags && zip -r mergers.zip mergers && spark-submit --py-files mergers.zip ...

A spec says the same of its ingest runs: `spark: {spark.submit.pyFiles: /path/mergers.zip}`.
"""
