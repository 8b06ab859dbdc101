"""Sources of type ``webhook``: messages that are sent to us over HTTP, appended by the servers that take them.

Nothing upstream can be asked again, so there is nothing to probe, bind and read: ``persist serve webhook`` appends what
it takes, answers once that is durable, and keeps the collection complete while none comes.
Source: design 003; RFC 9110; catalog-semantics.md section 4.2.
"""

from persist_ingest.sources.webhook.kind import WebhookType

WEBHOOK = WebhookType()
