"""The transports that come with CometMQ, one module or folder each."""
