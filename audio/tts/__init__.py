"""Voices with word times."""
