"""Paired tests, group-sequential looks and intervals: numbers in, numbers out."""
