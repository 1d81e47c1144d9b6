"""What tests share: builders, fixtures, references. No test stands here."""
