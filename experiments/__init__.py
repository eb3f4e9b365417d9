"""What produced each table of results: one folder per question, with its settings, its command and
its page.
"""
