"""A trained model at other temperatures and ways of generation, without training: ``tempopt evaluate``."""
