"""The command line: `tracejit demo`, `tracejit show FILE`."""
