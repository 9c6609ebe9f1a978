"""Generated from the .proto files beside it by `make proto`; nothing here is written by hand but those."""
