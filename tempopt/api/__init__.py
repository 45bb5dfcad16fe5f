"""The Python API: searches with progress, classes of a notebook, handles of studies in the background."""
