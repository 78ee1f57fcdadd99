"""Acoustic end-of-turn models."""
