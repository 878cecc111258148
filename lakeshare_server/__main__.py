"""`python -m lakeshare_server`: the server's commands without the pipelines."""

from lakeshare_server.cli import main

if __name__ == "__main__":
    main()
