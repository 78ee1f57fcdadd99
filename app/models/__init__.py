"""The model catalog and the store on disk. Knows files and hashes, not what a model computes."""
