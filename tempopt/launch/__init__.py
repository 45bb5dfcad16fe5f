"""What starts agents where there is room for them, and starts them again where they die."""
