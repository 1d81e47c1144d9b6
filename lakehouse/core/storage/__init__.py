"""Where bytes live: one small protocol in bytes and relative paths, whose strong verb is create-if-absent.

The room knows files, not tables. It keeps three promises on every store (local disk, memory, S3, GCS, Azure): a file is
seen whole under its name or not at all; of racing creates exactly one is told that it made the file; an error says
whether the same call may be made again, or whether one must look first. It refuses paths that leave the root, and file
systems without an atomic create.
"""
