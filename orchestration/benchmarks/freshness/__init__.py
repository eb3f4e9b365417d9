"""`freshet bench freshness`: how soon the running service finds what it is sent, and what readers notice of it."""
