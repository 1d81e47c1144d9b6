"""Sources that bring data in, their checkpoints, and what happens to records that do not fit."""
