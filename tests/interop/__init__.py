"""Interoperability tests: Apache Hudi and hudi-rs read and write tables of lakehouse, and the reverse."""
