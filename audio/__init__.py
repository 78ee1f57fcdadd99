"""Signal and speech on the CPU. Knows nothing of the agent, of torch or of Qt."""
