"""Telemetry of messages: traces, metrics, recorded rows, logs.

Each module is imported by its own name; the list shows which extra brings the package that it needs.

    tracecontext  W3C trace context from delivery to publish, without any package
    otel          OpenTelemetry: spans, links, metrics             messagebus-rabbitmq[opentelemetry]
    prometheus    Prometheus: statistics and histograms            messagebus-rabbitmq[prometheus]
    jsonlog       logs as JSON, one line each
"""
