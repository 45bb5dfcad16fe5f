"""A tempopt server as its clients see it: requests, errors, what rows look like on the wire, checkpoints."""
