"""Learned temperatures, tempered losses, entropy control and head gates, as modules."""
