"""Forward passes recorded once for batches of certain sizes, and replayed with one launch."""
