"""`python -m messagebus_conform`: see `messagebus_conform.cli`."""

from messagebus_conform.cli import main

main()
