"""The plugins that come with CometMQ, one module or folder each."""
