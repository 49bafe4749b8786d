"""Values of the pages' templates, made of one board and the query of an address.

Pure: no I/O, no clock. Texts are plain; the templates escape them.
"""
