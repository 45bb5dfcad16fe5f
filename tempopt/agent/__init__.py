"""Works on a study's tickets: takes them from the store, hands them to workers, reports what they come to."""
