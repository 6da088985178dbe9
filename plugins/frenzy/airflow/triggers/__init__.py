"""What waits without a worker slot: for a placement, for an attempt's end."""
