"""HDFS: its storage beyond the contract, and tables on it."""
