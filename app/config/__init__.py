"""The configuration: one schema, read from defaults, file, environment and flags."""
