"""The code of a study in one archive: gathered by git, packed, checked and unpacked."""
