"""The operator: brings nodes to serving cards, says what each waits for, and takes everything away again."""
