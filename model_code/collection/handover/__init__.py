"""Copy the live documents and their vectors to another search engine, and keep them up to date."""
