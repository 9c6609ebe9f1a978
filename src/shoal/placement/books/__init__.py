"""What is there and who holds it: `ledger` keeps the books, `columns` the same books as arrays."""
