"""The Python API: searches that show their progress, classes of a notebook, handles to wait with."""
