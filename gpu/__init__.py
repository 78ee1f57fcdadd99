"""Models, GPU memory and kernels. Importing it needs neither a GPU nor torch."""
