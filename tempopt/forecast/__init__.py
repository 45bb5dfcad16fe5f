"""What a study will take before it begins: how many runs, how long, and how small a gain it can show."""
