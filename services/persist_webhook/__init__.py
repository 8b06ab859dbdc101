"""Webhooks over HTTP: requests that are appended to tables, and answered once that is durable."""

from persist import extras

with extras.extra("webhook"):
    from persist_webhook.certificates import Certificates
    from persist_webhook.server import Limits, WebhookServer
    from persist_webhook.serving import serve_webhooks

__all__ = ["Certificates", "Limits", "WebhookServer", "serve_webhooks"]
