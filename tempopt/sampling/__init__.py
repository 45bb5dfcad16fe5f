"""Choice of the parameters of trials, and pruning. It works on rows, without store and agent."""
