"""Messagebus within frameworks: lifespans, dependencies, typed topics, codecs, AsyncAPI, CloudEvents.

Each module imports the package that it is for, and nothing else of them: docs/guides/frameworks.md.
"""
