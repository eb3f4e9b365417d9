"""Hand the live documents over to another search engine, and keep them up to date there."""
