"""The agent's side of a worker, the process that trains: messages, process, GPUs. Loads no torch."""
