"""Reports of both measuring kits: pages, charts and tables that need no other files."""
