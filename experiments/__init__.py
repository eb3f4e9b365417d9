"""Experiments behind the tables of results: one folder per question.

A folder has its settings, its command and its page.
"""
