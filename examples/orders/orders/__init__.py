"""Orders by HTTP, each billed once and mailed: a database and messagebus together."""
