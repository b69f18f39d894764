"""Scripts that measure. Each prints a table and can write JSON; none is a test."""
