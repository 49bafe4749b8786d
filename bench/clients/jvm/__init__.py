"""Systems that run on a JVM: Kafka and ActiveMQ Artemis, fetched, started, and under load."""
