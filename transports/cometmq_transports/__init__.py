"""The transports that come with CometMQ, a folder each; what they share lies beside them."""
