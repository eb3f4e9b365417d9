"""The resident service: search, add and delete over HTTP, all warm, generations swapped as it runs."""
