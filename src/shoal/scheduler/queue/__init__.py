"""Who is tried next, and who must go together."""
