"""What is known of a study: its result, the verdict in words, export and tables."""
