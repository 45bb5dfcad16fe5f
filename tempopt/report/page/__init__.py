"""A study as one HTML page that opens offline."""
