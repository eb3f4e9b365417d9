"""Freshet inside other frameworks.

Each framework needs an extra, such as `pip install -e '.[langchain]'` in a clone.
"""
