"""The conversation: a pure turn machine, the jobs it asks for, and the reply that is being spoken."""
