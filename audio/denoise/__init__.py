"""Noise suppression stages."""
