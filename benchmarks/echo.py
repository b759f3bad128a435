"""A ROUTER that sends back what it gets: the other end of limits.py's bare round trip."""

import sys

import zmq


def main() -> None:
    """Serve the address given as the only argument until killed."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(sys.argv[1])
        while True:
            router.send_multipart(router.recv_multipart())


if __name__ == "__main__":
    main()
