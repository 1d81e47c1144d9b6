"""What we write, read and changed by other Hudi implementations, and the other way round."""
