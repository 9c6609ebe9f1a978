"""What every service says of itself: metrics."""
