"""Groups of the command `messagebus`; `messagebus.__main__` adds them."""
