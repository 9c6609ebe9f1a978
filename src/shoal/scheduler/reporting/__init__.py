"""What people are told about pods that wait."""
