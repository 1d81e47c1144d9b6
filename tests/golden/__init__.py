"""Tests on tables and files that Apache Hudi wrote."""
