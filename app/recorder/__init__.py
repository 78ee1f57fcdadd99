"""Keeps what was heard and played, for listening again and for replays."""
