"""Undo writes: rollback, restore and savepoints."""
