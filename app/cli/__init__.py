"""The command line: `vivavoce` and its sub-commands. Every module is imported when its command is used."""
