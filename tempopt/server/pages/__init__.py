"""The two pages: the list of studies, and a study, which is its report; and the form to sign in."""
