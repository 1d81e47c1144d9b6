"""Avro: schemas, records as Arrow columns, object container files."""
