"""`shoal simulate`: placement policies compared on a trace."""
