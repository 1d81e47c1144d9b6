"""The differences between the supported versions of Spark: one module per minor version behind `SparkVersion`.

No other module compares versions of Spark, imports a name that only some versions have, or uses a JVM class whose name
depends on the version. To add a version, write its module and register it in `choice`.
"""
