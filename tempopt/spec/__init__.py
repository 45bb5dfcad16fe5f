"""What a study asks: its spec, read from YAML, checked and completed."""
