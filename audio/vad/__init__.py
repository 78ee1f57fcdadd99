"""Voice activity: a cheap gate, a neural judge, and the state machine that turns probabilities into runs."""
