"""A tempopt server as a client sees it: requests, errors, rows as JSON, checkpoints."""
