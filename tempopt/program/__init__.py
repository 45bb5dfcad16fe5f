"""Runs of commands and of Python functions, inside a worker that loads neither torch nor Lightning."""
