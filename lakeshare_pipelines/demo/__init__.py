"""The demo: the whole path on real flights, told as a short story.

story.py the plot; stage_hands.py what runs beside it (server, Dagster UI); runs.py Dagster runs with
progress; reader.py the official client; voice.py how it speaks.
"""
