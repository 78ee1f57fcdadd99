"""The window: widgets over view models. The only package that imports Qt."""
