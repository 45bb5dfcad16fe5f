"""Client of a tempopt server: requests, errors, rows as JSON, checkpoints."""
