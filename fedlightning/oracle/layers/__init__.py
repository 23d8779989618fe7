"""Rules that turn the layers of many clients into one operation."""
