"""The spec of a study: read from YAML, validated and completed."""
