"""Searches on recorded trainings: a simulated clock, and the tuners that are compared on it."""
