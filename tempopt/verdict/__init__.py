"""Plan the runs that confirm a search and decide its verdict, on rows alone."""
