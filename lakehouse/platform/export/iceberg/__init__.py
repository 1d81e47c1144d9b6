"""Apache Iceberg: the view is a table of format version 2 in the folder `metadata`, next to the data.

    metadata/v<number>.metadata.json      one version; created if absent, which is the commit
    metadata/version-hint.text            hint to the newest version, for readers without a catalog
    metadata/snap-<snapshot>-<id>.avro    manifest list of a snapshot
    metadata/<id>-b<bucket>.avro          manifest of the files in one bucket

Files are divided into buckets by their partition, in tables without partition columns by their file group. A snapshot
replaces the manifests of the buckets that changed, so its cost depends on the changed files and not on the table.
"""
