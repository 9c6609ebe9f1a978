"""What came out of the runs: as a table to read, as JSON to work with, as pictures on a page."""
