"""Where work runs: a few verbs, two implementations (local threads here, Spark in lakehouse.spark)."""
