"""Freshet inside other frameworks; each needs its extra, such as `pip install -e '.[langchain]'` in a clone."""
