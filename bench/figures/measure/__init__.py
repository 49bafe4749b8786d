"""What measuring itself costs, and whether it finds what was hidden from it."""
