"""What a picture says: node by node, who would have to go, and what another policy would do."""
