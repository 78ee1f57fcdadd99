"""Wires configuration to running objects, in one process or in several."""
