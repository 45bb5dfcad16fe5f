"""The pool: agents that serve any study, and who says which; what each is to get is decided in scheduling."""
