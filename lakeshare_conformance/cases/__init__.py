"""The cases, a file for each subject; a file's first sentence is the subject's title in the report."""
