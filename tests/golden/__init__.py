"""Tables and artefacts made by Apache Hudi, with their expected content."""
