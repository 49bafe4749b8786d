"""Orders in, invoices out: a small service on messagebus."""
