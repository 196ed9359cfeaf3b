"""The peers: programs that run in the peers' environment, know nothing of streamrf, and print one line of JSON."""
