"""What the command line and Python call: search, resume, extend and administer studies."""
