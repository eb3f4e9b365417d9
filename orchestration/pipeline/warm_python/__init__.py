"""A Python that has imported slow libraries, and forks a process for each command.

A build starts DVC and a stage many times, and each would import the same libraries for seconds.
`program` starts and stops this Python, the server. `client` is the program that takes the place of
`python` in a build's `PATH`, and sends each command to the server.
"""
