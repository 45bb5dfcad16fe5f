"""What is called in Python: searches that show their progress, a notebook's classes, handles to wait with."""
