"""The agent: composes `audio` and `gpu` into a conversation and shows it."""
