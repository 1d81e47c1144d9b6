"""The source `table`: read the changes of other tables."""
