"""Mining and storing, each beside the least it could take."""
