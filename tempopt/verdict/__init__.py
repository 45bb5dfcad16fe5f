"""Plan the runs that confirm a search and compute its verdict, from rows only."""
