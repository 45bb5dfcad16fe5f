"""Claim the tickets of a study, send them to worker processes, report their results to the storage."""
