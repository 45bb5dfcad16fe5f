"""The studies of a store as tools of the Model Context Protocol, for coding agents, within a budget."""
