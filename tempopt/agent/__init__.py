"""Take a study's tickets from the storage, have worker processes train them, report their results."""
