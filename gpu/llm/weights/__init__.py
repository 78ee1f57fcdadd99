"""Model files in, named tensors out."""
