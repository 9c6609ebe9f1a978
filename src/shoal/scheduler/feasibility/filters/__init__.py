"""The filters and preferences, each over all rows at once."""
