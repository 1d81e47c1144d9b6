"""What users declare: table specs, options, service descriptors, and the contracts between processes. Light imports."""
