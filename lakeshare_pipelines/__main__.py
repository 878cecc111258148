"""`python -m lakeshare_pipelines`: the `lakeshare` command, for child processes of the same Python."""

from lakeshare_pipelines.cli.main import main

if __name__ == "__main__":
    main()
