"""Recording calls, guarding what they relied on, and running them compiled: see README.md."""
