"""The public API of a table: Table, TableScan and TableServices."""
