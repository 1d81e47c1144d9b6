"""Contents of timeline files: plans and metadata of each action, and the archived timeline."""
