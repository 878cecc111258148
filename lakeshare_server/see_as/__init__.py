"""`lakeshare as RECIPIENT …`: what a recipient gets, by the routes that answer its own requests.

eyes.py asks; what_is_told.py reads the lines of answers; command.py prints.
"""
