"""What a free piece is worth: counted (`demand`), priced (`prices`), summed up (`valuation`), dear (`pressures`)."""
