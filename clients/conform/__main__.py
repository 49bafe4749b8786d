"""`python -m clients.conform`: see `clients.conform.cli`."""

from clients.conform.cli import main

main()
