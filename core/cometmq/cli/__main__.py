"""`python -m cometmq.cli` is `mq`."""

from cometmq.cli import main

main()
