"""Tools that look at a bus: `top`, `topics`, `doctor`, `tail`, archives, webhooks; `observing` below them."""
