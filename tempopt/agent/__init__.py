"""Works on a study's tickets: takes them from the store, gives them to workers, reports their results."""
