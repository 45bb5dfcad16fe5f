"""Which runs prove what a search found, and the verdict on them: decided on rows, without store or agent."""
