"""Delta Lake: the view is a Delta log next to the data.

_delta_log/<version>.json                 actions of one version; created if absent, which is the commit
_delta_log/<version>.checkpoint.parquet   all files of a version, so that readers open few entries
_delta_log/_last_checkpoint               hint to the newest checkpoint
"""
