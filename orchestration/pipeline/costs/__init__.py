"""What effectiveness costs: latency, memory, bytes and time, measured here or recorded when a stage ran.

None of it is an artifact: numbers that differ from run to run stay out of everything that is hashed.
"""
