"""The resident service: search, add and delete over HTTP, with everything in memory."""
