"""What was stored in a step, as records, a table and a log."""
