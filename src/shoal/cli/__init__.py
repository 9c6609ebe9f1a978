"""The command line: thin, no logic. A command imports what it needs when it runs, so that help comes at once."""
