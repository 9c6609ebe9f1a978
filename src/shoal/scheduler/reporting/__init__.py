"""What people are told about their pods: events, conditions, and why a pod does not fit."""
