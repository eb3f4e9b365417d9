"""Documents on their way into the live collections: read, recorded, made searchable, kept up."""
