"""Storage: bytes under relative paths, on local disks, in memory, on HDFS, S3, GCS and Azure.

The package handles files, not tables. Its essential operation is create-if-absent. Every store guarantees three things:
a reader gets a complete file or none; exactly one of concurrent creates succeeds; the class of an error shows whether
the call may be repeated, or the outcome must be read first. Paths that leave the root and file systems without an
atomic create are refused.
"""
