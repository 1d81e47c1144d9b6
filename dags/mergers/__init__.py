"""Mergers of one's own: each module is a plain Python file that a table spec names as `mergers.module:function`.

The folder above must be importable where the table is opened and in Spark's workers: `PYTHONPATH=dags`, or, where
workers run elsewhere, an archive that goes with the job:

    cd dags && zip -r mergers.zip mergers && spark-submit --py-files mergers.zip ...

A spec says the same of its ingest runs: `spark: {spark.submit.pyFiles: /path/mergers.zip}`.
"""
