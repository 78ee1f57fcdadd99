"""Benchmarks: every figure that the project claims is made here and can be recomputed from its rows."""
