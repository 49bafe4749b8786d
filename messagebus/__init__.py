"""Publish to any RabbitMQ broker behind a balancer, consume from all of them."""
